# SPDX-License-Identifier: Apache-2.0
"""harp doctor's findings about dpdk devices, on fake hosts."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_host import ID, POOL, FakeHost

from harp.cli import doctor_dpdk, env
from harp.setup import nics, pages
from harp.setup.bind import Bind
from harp.setup.journal import Journal
from harp.setup.plan import conf_dir

Findings = Callable[..., "dict[str, list[str]]"]
GIVEN = "0000:00:06.0"
NODE = "dev/vfio/7"


@pytest.fixture
def host(fake: FakeHost) -> FakeHost:
    """A host with eth0, eth1 and a NIC bound to vfio-pci, in IOMMU group 7."""
    fake.add_device(f"pci0000:00/{GIVEN}", "0x020000", "vfio-pci")
    fake.join_group(GIVEN, "7")
    fake.write(NODE)
    fake.write("proc/self/status", "Name:\tharp\nCapEff:\t000001ffffffffff\n")
    fake.set_pages(POOL, 128, 128)
    return fake


@pytest.fixture
def findings(host: FakeHost, tmp_path: Path) -> Findings:
    """Returns doctor's texts by level, for a file with these lines."""

    def look(device: str = GIVEN, *lines: str) -> dict[str, list[str]]:
        path = tmp_path / "conf/ztcp0.conf"
        text = [f"device = dpdk:{device}", "address = 10.0.3.7/24", *lines]
        path.write_text("\n".join(text) + "\n")
        found: dict[str, list[str]] = {"ok": [], "note": [], "fault": []}
        for one in doctor_dpdk.check("ztcp0.conf", env.read(path).values):
            assert one.about == "ztcp0.conf"
            found[one.level].append(one.text)
        return found

    return look


def test_correct_nic_has_no_fault(findings: Findings) -> None:
    found = findings()
    assert found["fault"] == [] and found["note"] == []
    assert found["ok"] == [
        f"{GIVEN} is bound to vfio-pci, IOMMU group 7", "256 MiB of hugepages are free",
    ]  # fmt: skip
    assert findings("00:06.0") == found
    assert findings("virtio_user0,path=/run/x")["ok"] == ["device = dpdk:virtio_user0,path=/run/x"]
    few = findings("virtio_user0,path=/run/x", "hugepages = 512")
    assert not few["ok"] and "hugepages = 512 is more than the 256 MiB that are" in few["fault"][0]


def rebind(host: FakeHost, driver: str) -> None:
    """Binds the NIC to another driver, "" for none."""
    link = (host.root / "sys/bus/pci/devices" / GIVEN).resolve() / "driver"
    link.unlink()
    if driver:
        target = host.root / "sys/bus/pci/drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def no_group(host: FakeHost) -> None:
    ((host.root / "sys/bus/pci/devices" / GIVEN).resolve() / "iommu_group").unlink()


def no_iommu(host: FakeHost) -> None:
    host.write("sys/kernel/iommu_groups/7/name", "vfio-noiommu\n")


def a_neighbour(host: FakeHost) -> None:
    host.add_device("pci0000:00/0000:00:07.0", "0x010000", "ahci")
    host.join_group("0000:00:07.0", "7")


FAULTS: dict[str, tuple[Callable[[FakeHost], object], str]] = {
    "kernel": (
        lambda host: rebind(host, "virtio-pci"),
        f"bound to the kernel's driver virtio-pci; run harp setup --device dpdk:{GIVEN}",
    ),
    "unbound": (lambda host: rebind(host, ""), "is unbound; run harp setup --device"),
    "no group": (no_group, "bound to vfio-pci, but in no IOMMU group; enable the IOMMU"),
    "container": (
        lambda host: (host.root / NODE).unlink(),
        "no /dev/vfio/7 here; a container needs it and /dev/vfio/vfio",
    ),
    "group": (a_neighbour, "shares IOMMU group 7 with 0000:00:07.0 (ahci), and VFIO needs"),
    "address": (
        lambda host: host.towards.update({"10.0.3.7": "local 10.0.3.7 dev lo"}),
        "10.0.3.7 is one of the kernel's addresses",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_names_its_remedy(fault: str, host: FakeHost, findings: Findings) -> None:
    assert findings()["fault"] == []
    damage, said = FAULTS[fault]
    damage(host)
    (text,) = findings()["fault"]
    assert said in text and "\n" not in text


def test_missing_device_is_a_fault(findings: Findings) -> None:
    assert "there is no PCI device 0000:00:66.0" in findings("0000:00:66.0")["fault"][0]
    assert findings(ID)["fault"]  # it exists, but is not bound to a user-space driver


def test_inaccessible_iommu_group_is_a_fault(
    findings: Findings, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Access is mocked here; tests/vm checks it with a real user in a virtual machine."""
    asked: list[tuple[Path, int]] = []

    def refuse(path: Path, mode: int) -> bool:
        asked.append((path, mode))
        return False

    monkeypatch.setattr(os, "access", refuse)
    (text,) = findings()["fault"]
    assert text == f"this user cannot open /{NODE}; chown it, or run as root"
    assert asked == [(host.root / NODE, os.R_OK | os.W_OK)]


def test_low_memlock_limit_is_a_fault(
    findings: Findings, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limit(size: int) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (size, size))

    limit(8 << 20)
    assert findings()["fault"] == []
    host.write("proc/self/status", "CapEff:\t0000000000000000\n")
    (text,) = findings()["fault"]
    assert "HARP must map 80 MiB for the NIC, but this process may lock 8;" in text
    assert "CAP_IPC_LOCK, or ulimit -l unlimited" in text
    limit(resource.RLIM_INFINITY)
    assert findings()["fault"] == findings()["note"] == []
    limit(80 << 20)
    (text,) = findings()["note"]
    assert "may lock 80 MiB: HARP sends 0 MiB of NCCL's memory in place" in text
    limit((80 << 20) - 1)
    assert findings()["fault"]


def test_required_memlock_follows_configuration(
    findings: Findings, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The required memory: more for each instance, or the configured size, or without hugepages
    the size of the ordinary pages."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100 << 20, 100 << 20))
    host.write("proc/self/status", "CapEff:\t0000000000000000\n")
    assert "20 MiB of NCCL's memory" in findings()["note"][0] and findings()["fault"] == []
    assert "must map 128 MiB" in findings(GIVEN, "instances = 2")["fault"][0]
    assert "must map 120 MiB" in findings(GIVEN, "hugepages = 120")["fault"][0]
    host.set_pages(POOL, 128, 39)
    assert "must map 1024 MiB" in findings()["fault"][0]
    no_iommu(host)
    assert not any("mapped" in text for text in findings()["fault"])


def test_device_in_use_is_noted(findings: Findings, host: FakeHost) -> None:
    folder = host.root / "proc/4711/fd"
    folder.mkdir(parents=True)
    (folder / "9").symlink_to("/dev/vfio/7")
    host.set_pages(POOL, 128, 0)  # the process has the pages
    found = findings()
    assert found["note"] == [f"{GIVEN} is in use by process 4711"] and found["fault"] == []


def test_hugepage_shortage_is_reported(findings: Findings, host: FakeHost) -> None:
    assert "hugepages = 300 is more than the 256 MiB that are free" in findings(
        GIVEN, "hugepages = 300"
    )["fault"][0]  # fmt: skip
    host.set_pages(POOL, 128, 39)
    assert "78 MiB of hugepages are free: HARP will use ordinary pages" in findings()["note"][0]
    host.set_pages(POOL, 128, 40)
    assert findings()["note"] == []
    assert "ordinary pages" in findings(GIVEN, "instances = 2")["note"][0]


def test_missing_iommu_is_noted(
    findings: Findings, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_iommu(host)
    found = findings()
    assert found["fault"] == [] and "all of this host's memory" in found["note"][0]
    assert found["ok"][0] == f"{GIVEN} is bound to vfio-pci"
    host.set_pages(POOL, 128, 39)
    assert f"{GIVEN} needs 80 MiB of hugepages without an IOMMU" in findings()["fault"][0]
    rebind(host, "uio_pci_generic")
    host.set_pages(POOL, 128, 128)
    assert findings()["fault"] == []
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "only root may use" in findings()["fault"][0]


def test_uio_driver_needs_hugepages_despite_iommu(findings: Findings, host: FakeHost) -> None:
    rebind(host, "uio_pci_generic")
    assert findings()["ok"][0] == f"{GIVEN} is bound to uio_pci_generic"
    host.set_pages(POOL, 128, 39)
    assert f"{GIVEN} needs 80 MiB of hugepages without an IOMMU" in findings()["fault"][0]


def test_memory_limits_match_c_source() -> None:
    """Python and C have the same rule."""
    root = Path(__file__).resolve().parents[2]
    source = (root / "dpdk_glue/dpdk/ethdev_device.c").read_text()
    mib = {name: int(text) for name, text in re.findall(r"\b(BASE|QUEUE)_MIB = (\d+)", source)}
    assert "BASE_MIB + QUEUE_MIB * ethdev->queue_count" in source
    for count in (1, 8):
        assert pages.least_mib(count) == mib["BASE"] + count * mib["QUEUE"]
    assert f"PLAIN_MIB = {pages.PLAIN_MIB}," in (root / "dpdk_glue/dpdk/eal.c").read_text()


def test_iommu_group_rule_matches_c_source() -> None:
    root = Path(__file__).resolve().parents[2]
    source = (root / "dpdk_glue/dpdk/ethdev_device.c").read_text()
    rule = source.partition("static bool stands_aside(")[2].partition("}")[0]
    assert re.findall(r'strcmp\(driver, "([^"]+)"\) == 0', rule) == [*filter(None, nics.ASIDE)]
    assert "!driver[0] ||" in rule and 'strncmp(class, "0x06", 4) == 0' in rule  # a bridge
    assert rule.count("||") == len(nics.ASIDE)


@pytest.mark.parametrize(
    ("driver", "keeps"),
    [("pci-stub", False), ("vfio-pci", False), ("", False), ("uio_pci_generic", True)],
)
def test_driver_that_blocks_vfio_group_is_a_fault(
    findings: Findings, host: FakeHost, driver: str, keeps: bool
) -> None:
    other = host.add_device("pci0000:00/0000:00:07.0", "0x020000", driver)
    host.join_group(other, "7")
    assert any(f"with {other} ({driver})" in text for text in findings()["fault"]) == keeps


def test_mtu_above_former_interface_mtu_is_noted(findings: Findings) -> None:
    settings = {"name": "eth2", "mtu": 1500, "mac": "", "up": True, "routes": [], "addresses": []}
    step = Bind(GIVEN, "vfio-pci", "virtio-pci", "", settings, "this-boot")
    Journal(conf_dir()).carry_out(step)
    assert findings(GIVEN, "mtu = 1500")["note"] == []
    (text,) = findings(GIVEN, "mtu = 9000")["note"]
    assert "mtu = 9000 is more than the 1500 that eth2 had" in text
