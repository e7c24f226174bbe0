# SPDX-License-Identifier: Apache-2.0
"""A fake host of files and fixed tool output, to test plans for machines that no test has."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harp.setup import arp, bootline, host, kernel, nics, sysfs

GIB_KB = 1048576
POOL = "sys/kernel/mm/hugepages/hugepages-2048kB"
ID = "0000:00:05.0"  # the NIC that is not in use


@dataclass
class FakeHost:
    """`root` replaces /. Routes are lines of ip(8) without their device, by interface."""

    root: Path
    addresses: dict[str, list[str]] = field(default_factory=dict)
    routes: dict[str, list[str]] = field(default_factory=dict)
    default_routes: list[str] = field(default_factory=list)
    towards: dict[str, str] = field(default_factory=dict)
    modules: set[str] = field(default_factory=lambda: {"vfio-pci", "uio_pci_generic"})
    vfio_parameters: str = ""

    # -- building

    def write(self, path: str, text: str = "") -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def _link(self, path: str, target: Path) -> None:
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        target.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def add_device(
        self, place: str, kind: str, driver: str = "", vendor: str = "0x1af4", **files: str
    ) -> str:
        """Adds a PCI device; `place` is its path below /sys/devices, `kind` its class."""
        folder = self.root / "sys/devices" / place
        folder.mkdir(parents=True)
        pci_id = folder.name
        self._link(f"sys/bus/pci/devices/{pci_id}", folder)
        values = {"vendor": vendor, "class": kind, "numa_node": "-1", "driver_override": "(null)"}
        for name, text in {**values, **files}.items():
            (folder / name).write_text(text + "\n")
        if driver:
            self._link(
                str(folder.relative_to(self.root) / "driver"),
                self.root / f"sys/bus/pci/drivers/{driver}",
            )
        return pci_id

    def add_nic(
        self,
        name: str,
        place: str,
        driver: str = "ena",
        addresses: tuple[str, ...] = (),
        group: str = "",
        **files: str,
    ) -> str:
        """Adds a NIC with an interface; `files`: of the interface, or node=N."""
        device = {"numa_node": files.pop("node")} if "node" in files else {}
        pci_id = self.add_device(place, "0x020000", driver, **device)
        folder = self.root / "sys/devices" / place / "net" / name
        folder.mkdir(parents=True)
        self._link(f"sys/class/net/{name}", folder)
        (folder / "device").symlink_to(folder.parents[1])
        values = {"type": "1", "flags": "0x1003", "mtu": "1500", "address": "02:00:00:00:00:01"}
        values |= {"carrier": "1", "addr_assign_type": "0", "ifindex": name[-1]}
        for file, text in {**values, **files}.items():
            (folder / file).write_text(text + "\n")
        self.addresses[name] = list(addresses)
        if group:
            self.join_group(pci_id, group)
        return pci_id

    def add_gpu(self, place: str) -> str:
        return self.add_device(place, "0x030200", vendor="0x10de")

    def join_group(self, pci_id: str, group: str) -> None:
        """Puts a device into an IOMMU group."""
        device = (self.root / "sys/bus/pci/devices" / pci_id).resolve()
        folder = self.root / "sys/kernel/iommu_groups" / group
        self._link(f"sys/kernel/iommu_groups/{group}/devices/{pci_id}", device)
        (device / "iommu_group").symlink_to(folder)

    def set_pages(self, folder: str, total: int, free: int) -> None:
        self.write(f"{folder}/nr_hugepages", f"{total}\n")
        self.write(f"{folder}/free_hugepages", f"{free}\n")

    def work_over_ssh(self, client: str, here: str, by_parent: bool = False) -> None:
        """Pretends that set-up runs in an ssh session, or with `by_parent` under sudo in one."""
        pid = os.getpid()
        session = f"HOME=/root\0SSH_CONNECTION={client} 5022 {here} 22\0"
        self.write(f"proc/{pid}/stat", f"{pid} (a ) b) S {4000 if by_parent else 1} 0")
        self.write(f"proc/{4000 if by_parent else pid}/environ", session)

    # -- answers

    def ip(self, *args: str) -> str:
        """The output of ip(8)."""
        listed: list[str] = []
        if "addr" in args:
            for name in self.addresses if args[-1] == "show" else args[-1:]:
                for address in self.addresses.get(name, []):
                    family = "inet6" if ":" in address else "inet"
                    scope = "link" if address.startswith("fe80") else "global"
                    listed.append(f"3: {name}    {family} {address} scope {scope} {name}\\  x")
        elif args[:2] == ("route", "get"):
            if args[2] not in self.towards:
                raise host.HostError("RTNETLINK answers: Network is unreachable")
            listed = [self.towards[args[2]]]
        elif args[-1] == "default":
            listed = [line for line in self.default_routes if (":" in line) == (args[0] == "-6")]
        else:
            lines = self.routes.get(args[-1], [])
            listed = [line for line in lines if (":" in line) == (args[0] == "-6")]
        return "".join(line + "\n" for line in listed)

    def run_tool(self, *command: str) -> tuple[bool, str]:
        """The output of the tools for modules and boot loaders."""
        if command[0] == "modprobe" and "--show-depends" in command:
            return True, f"insmod /lib/modules/1/{command[-1]}.ko"
        if command[0] == "modprobe":
            return command[-1] in self.modules, ""
        if command[0] == "modinfo":
            return True, self.vfio_parameters
        if command[0] == "update-grub":
            extra = self.root / "etc/default/grub.d/harp.cfg"
            self.write("boot/grub/grub.cfg", extra.read_text() if extra.exists() else "plain")
            return True, ""
        raise AssertionError(command)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    """A host with two NICs: eth0 has the default route, eth1 only an address."""
    made = FakeHost(tmp_path / "root")
    monkeypatch.setattr(sysfs, "ROOT", made.root)
    monkeypatch.setattr(host, "ip", made.ip)
    monkeypatch.setattr(arp, "holder", lambda *_: None)  # its networks have no other hosts
    for module in (kernel, nics, bootline):
        monkeypatch.setattr(module, "run_tool", made.run_tool)
    monkeypatch.setenv("HARP_CONF_DIR", str(tmp_path / "conf"))
    monkeypatch.setenv("HARP_RUN_DIR", str(tmp_path / "run"))
    (tmp_path / "conf").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o1777)
    made.write("proc/sys/kernel/random/boot_id", "this-boot\n")
    made.write("proc/cmdline", "quiet\n")
    made.set_pages(POOL, 0, 0)
    made.add_nic("eth0", "pci0000:00/0000:00:04.0", addresses=("10.0.0.9/24",))
    made.add_nic("eth1", f"pci0000:00/{ID}", addresses=("10.0.3.7/24",))
    made.default_routes = ["default via 10.0.0.1 dev eth0 proto dhcp metric 100"]
    return made
