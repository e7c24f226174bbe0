# SPDX-License-Identifier: Apache-2.0
"""What `harp doctor` says of a device that HARP has to itself: its driver, who may open it,
its IOMMU group, and the memory that it needs. Reads only."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

from harp import loader, nccl_plugin_path
from harp.cli.findings import Finding, fault, note, ok
from harp.setup import host, nics, pages, pci, sysfs
from harp.setup.bind import Bind, device_nodes, holders
from harp.setup.journal import Journal
from harp.setup.plan import conf_dir
from harp.setup.request import place_of

_CAP_IPC_LOCK = 14

Values = dict[str, tuple[str, str]]  # a file's, as env reads it


def _driver(about: str, device: pci.PciDevice) -> Iterator[Finding]:
    bound = f"the kernel's, bound to its driver {device.driver}" if device.driver else "unbound"
    yield fault(
        about,
        f"the NIC {device.id} is {bound}; harp setup --device dpdk:{device.id} binds it (after "
        "each reboot: harp setup --yes)",
    )


# -- who may open it


def _node(device: pci.PciDevice) -> str:
    """The file in /dev that a process opens to have the device."""
    path = f"dev/vfio/{device.group}"
    return path if sysfs.at(path).exists() else f"dev/vfio/noiommu-{device.group}"


def _vfio(about: str, device: pci.PciDevice) -> Iterator[Finding]:
    if not device.group:
        yield fault(
            about,
            f"{device.id} is bound to vfio-pci, but in no IOMMU group; switch the IOMMU on "
            "(firmware; intel_iommu=on), or harp setup again",
        )
        return
    node = _node(device)
    if not sysfs.at(node).exists():
        yield fault(
            about,
            f"no /dev/vfio/{device.group} here; a container needs it and /dev/vfio/vfio "
            "(docker run --device, or a privileged pod)",
        )
    elif not os.access(sysfs.at(node), os.R_OK | os.W_OK):
        yield fault(about, f"/{node} cannot be opened by this user; chown it, or run as root")
    yield from _group(about, device)
    if not nics.has_iommu(device):
        yield from _without_iommu(about, device)


def _group(about: str, device: pci.PciDevice) -> Iterator[Finding]:
    if not nics.has_iommu(device):
        return
    kept = nics.in_the_way(device.group)
    if kept:
        named = ", ".join(f"{one.id} ({one.driver})" for one in kept)
        yield fault(
            about,
            f"{device.id} shares IOMMU group {device.group} with {named}, and a group is given "
            "away as a whole: harp setup with those NICs as well, or another slot for the card",
        )


def _without_iommu(about: str, device: pci.PciDevice) -> Iterator[Finding]:
    if os.geteuid() != 0:
        yield fault(
            about, f"without an IOMMU {device.id} is root's alone; run as root, or switch one on"
        )
    yield note(about, f"no IOMMU keeps {device.id} from any of this host's memory")


# -- memory


def _may_lock_all() -> bool:
    status = sysfs.text(sysfs.at("proc/self/status"))
    words = [line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")]
    return bool(words) and bool(int(words[0], 16) >> _CAP_IPC_LOCK & 1)


def _locked_memory(about: str, needed: int) -> Iterator[Finding]:
    """`needed`: MiB that are mapped for the NIC before any of NCCL's memory."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY or _may_lock_all():
        return
    remedy = "give it CAP_IPC_LOCK, or ulimit -l unlimited"
    may = limit >> 20
    if may < needed:
        yield fault(
            about,
            f"{needed} MiB are to be mapped for the NIC, and this process may lock {may}; {remedy}",
        )
    else:
        yield note(
            about,
            f"this process may lock {may} MiB: {may - needed} of NCCL's memory are sent in place, "
            f"and what is beyond is copied; {remedy}",
        )


def _free_mib() -> int:
    folder = sysfs.at("sys/kernel/mm/hugepages")
    found = 0
    for name in sysfs.names(folder):
        size_kb = int("0" + "".join(filter(str.isdigit, name)))
        found += pages.free(f"sys/kernel/mm/hugepages/{name}") * size_kb
    return found >> 10


def _is_mapped(device: pci.PciDevice) -> bool:
    """Whether an IOMMU stands before the memory: under uio there is none, whatever the host has."""
    return device.driver == nics.VFIO and nics.has_iommu(device)


def _memory(about: str, device: pci.PciDevice, values: Values) -> Iterator[Finding]:
    asked = int(values["hugepages"][0] or 0)
    needed, free = asked or pages.least_mib(int(values["instances"][0])), _free_mib()
    remedy = "harp setup sets some aside, or sysctl vm.nr_hugepages"
    if free >= needed:
        yield ok(about, f"{free} MiB of hugepages are free")
    elif asked:
        yield fault(
            about, f"hugepages = {asked} is more than the {free} MiB that are free; {remedy}"
        )
    elif not _is_mapped(device):
        yield fault(
            about,
            f"without an IOMMU {device.id} needs {needed} MiB of hugepages, and {free} are free; "
            f"{remedy}",
        )
    else:
        yield note(
            about, f"{free} MiB of hugepages are free: ordinary pages will be used; {remedy}"
        )
        needed = pages.PLAIN_MIB
    if _is_mapped(device):
        yield from _locked_memory(about, needed)


# -- what the file says


def _mtu(about: str, device: pci.PciDevice, wanted: str) -> Iterator[Finding]:
    """Nobody can ask a NIC whose driver is gone; but the journal knows what it had."""
    for step in Journal(conf_dir()).steps:
        if isinstance(step, Bind) and step.pci_id == device.id and step.settings and wanted:
            had = step.settings.mtu
            if int(wanted) > had:
                yield note(
                    about,
                    f"mtu = {wanted} is more than the {had} that {step.settings.name} had; if "
                    "the NIC or the network takes no more, lower it",
                )


def _address(about: str, values: Values) -> Iterator[Finding]:
    own = values["address"][0].partition("/")[0]
    if host.is_local(own):
        yield fault(
            about, f"the kernel holds {own} itself; take it from its interface, or take another"
        )


def _pci(about: str, device: pci.PciDevice, values: Values) -> Iterator[Finding]:
    if device.driver not in nics.GIVEN:
        yield from _driver(about, device)
        return
    look = _vfio if device.driver == nics.VFIO else _without_iommu
    found = list(look(about, device))
    yield from found
    if not any(one.level == "fault" for one in found):
        group = f", IOMMU group {device.group}" if _is_mapped(device) else ""
        yield ok(about, f"{device.id} is bound to {device.driver}{group}")
    users = holders(device_nodes(device))
    if users:
        yield note(about, f"{device.id} is in use by process {users[0]}")
    else:  # who uses it has the memory as well
        yield from _memory(about, device, values)
    yield from _mtu(about, device, values["mtu"][0])


def _no_device(about: str, place: str) -> Finding:
    return fault(
        about,
        f"there is no PCI device {place}, nor a driver of DPDK's in software of that name "
        f"({', '.join(nics.SOFTWARE)}); harp setup nics lists the NICs that there are",
    )


def _build(about: str, place: str) -> Iterator[Finding]:
    try:
        lacks = loader.lacks_dpdk(nccl_plugin_path())
    except FileNotFoundError:
        return  # doctor says so elsewhere
    if lacks:
        yield fault(
            about,
            f"dpdk:{place}: this HARP was built without DPDK; build it where libdpdk-dev is "
            "installed, or share the NIC with the kernel as packet:IFACE",
        )


def check(about: str, values: Values) -> Iterator[Finding]:
    """Findings about a dpdk device; `about` names its file. Raises HostError, StepError or
    OSError."""
    place = place_of(values["device"][0])
    yield from _build(about, place)
    if nics.is_software(place):
        yield ok(about, f"device = {values['device'][0]}")
        return
    yield from _address(about, values)
    device = pci.device(place)
    if device is None:
        yield _no_device(about, place)
    else:
        yield from _pci(about, device, values)
