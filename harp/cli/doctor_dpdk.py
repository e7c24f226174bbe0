# SPDX-License-Identifier: Apache-2.0
"""The checks of `harp doctor` for dpdk devices: driver, access rights, IOMMU group and memory.
Changes nothing."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

from harp import loader, nccl_plugin_path
from harp.cli.env import Values
from harp.cli.findings import Finding, fault, note, ok
from harp.setup import host, nics, pages, pci, sysfs
from harp.setup.bind import Bind, device_nodes, holders
from harp.setup.journal import Journal
from harp.setup.plan import conf_dir
from harp.setup.request import place_of


def _driver(about: str, device: pci.PciDevice) -> Iterator[Finding]:
    bound = f"bound to the kernel's driver {device.driver}" if device.driver else "unbound"
    yield fault(
        about,
        f"the NIC {device.id} is {bound}; run harp setup --device dpdk:{device.id} (after a "
        "reboot: harp setup restore)",
    )


# -- access rights


def _node(device: pci.PciDevice) -> str:
    """The file in /dev that a process opens to drive the device."""
    path = f"dev/vfio/{device.group}"
    return path if sysfs.at(path).exists() else f"dev/vfio/noiommu-{device.group}"


def _vfio(about: str, device: pci.PciDevice) -> Iterator[Finding]:
    if not device.group:
        yield fault(
            about,
            f"{device.id} is bound to vfio-pci, but in no IOMMU group; enable the IOMMU "
            "(firmware; intel_iommu=on), or run harp setup again",
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
        yield fault(about, f"this user cannot open /{node}; chown it, or run as root")
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
            f"{device.id} shares IOMMU group {device.group} with {named}, and VFIO needs the whole "
            "group: add those NICs with harp setup, or move the card to another slot",
        )


def _without_iommu(about: str, device: pci.PciDevice) -> Iterator[Finding]:
    if os.geteuid() != 0:
        yield fault(
            about, f"only root may use {device.id} without an IOMMU; run as root, or enable one"
        )
    yield note(about, f"{device.id} has no IOMMU: it can access all of this host's memory")


# -- memory


def _locked_memory(about: str, needed: int) -> Iterator[Finding]:
    """`needed`: MiB that HARP maps for the NIC before any of NCCL's memory."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY or host.has_capability("ipc_lock"):
        return
    remedy = "give it CAP_IPC_LOCK, or ulimit -l unlimited"
    may = limit >> 20
    if may < needed:
        yield fault(
            about,
            f"HARP must map {needed} MiB for the NIC, but this process may lock {may}; {remedy}",
        )
    else:
        yield note(
            about,
            f"this process may lock {may} MiB: HARP sends {may - needed} MiB of NCCL's memory in "
            f"place and copies the rest; {remedy}",
        )


def _free_mib() -> int:
    folder = sysfs.at("sys/kernel/mm/hugepages")
    found = 0
    for name in sysfs.names(folder):
        size_kb = int("0" + "".join(filter(str.isdigit, name)))
        found += pages.free(f"sys/kernel/mm/hugepages/{name}") * size_kb
    return found >> 10


def _is_mapped(device: pci.PciDevice) -> bool:
    """Whether an IOMMU translates the device's accesses. Under uio it never does."""
    return device.driver == nics.VFIO and nics.has_iommu(device)


def _too_many(about: str, configured: int, free: int, remedy: str) -> Finding:
    return fault(
        about, f"hugepages = {configured} is more than the {free} MiB that are free; {remedy}"
    )


def _software(about: str, values: Values, in_use: bool) -> Iterator[Finding]:
    """A software device needs no NIC, and ordinary pages do, unless the file asks for others."""
    configured, free = int(values["hugepages"][0] or 0), _free_mib()
    if configured > free and not in_use:
        yield _too_many(about, configured, free, "set sysctl vm.nr_hugepages, or lower it")
    else:
        yield ok(about, f"device = {values['device'][0]}")


def _memory(about: str, device: pci.PciDevice, values: Values) -> Iterator[Finding]:
    configured = int(values["hugepages"][0] or 0)
    needed, free = configured or pages.least_mib(int(values["instances"][0] or 1)), _free_mib()
    remedy = "run harp setup, or set sysctl vm.nr_hugepages"
    if free >= needed:
        yield ok(about, f"{free} MiB of hugepages are free")
    elif configured:
        yield _too_many(about, configured, free, remedy)
    elif not _is_mapped(device):
        yield fault(
            about,
            f"{device.id} needs {needed} MiB of hugepages without an IOMMU, but {free} are free; "
            f"{remedy}",
        )
    else:
        yield note(
            about, f"{free} MiB of hugepages are free: HARP will use ordinary pages; {remedy}"
        )
        needed = pages.PLAIN_MIB
    if _is_mapped(device):
        yield from _locked_memory(about, needed)


# -- the values of the file


def _mtu(about: str, device: pci.PciDevice, wanted: str) -> Iterator[Finding]:
    """Compares with the MTU in the journal: a NIC without its kernel driver cannot be asked."""
    for step in Journal(conf_dir()).steps:
        if isinstance(step, Bind) and step.pci_id == device.id and step.settings and wanted:
            had = step.settings.mtu
            if int(wanted) > had:
                yield note(
                    about,
                    f"mtu = {wanted} is more than the {had} that {step.settings.name} had; lower "
                    "it if the NIC or the network does not support it",
                )


def _address(about: str, values: Values) -> Iterator[Finding]:
    own = values["address"][0].partition("/")[0]
    if host.is_local(own):
        yield fault(
            about,
            f"{own} is one of the kernel's addresses; remove it from its interface, or set another",
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
    else:  # a process that uses the NIC has its memory already
        yield from _memory(about, device, values)
    yield from _mtu(about, device, values["mtu"][0])


def _no_device(about: str, place: str) -> Finding:
    return fault(
        about,
        f"there is no PCI device {place}, and no DPDK software device of that name "
        f"({', '.join(nics.SOFTWARE)}); harp setup nics lists this host's NICs",
    )


def _build(about: str, place: str) -> Iterator[Finding]:
    try:
        lacks = loader.lacks_dpdk(nccl_plugin_path())
    except FileNotFoundError:
        return  # built_plugin() reports it
    if lacks:
        yield fault(
            about,
            f"dpdk:{place}: this HARP was built without DPDK; build it on a host with libdpdk-dev, "
            "or share the NIC with the kernel as packet:IFACE",
        )


def check(about: str, values: Values, in_use: bool = False) -> Iterator[Finding]:
    """The findings for a dpdk device; `about` is its file's name. `in_use`: a process has claimed
    the file, and has its memory. Raises HostError, StepError or OSError."""
    place = place_of(values["device"][0])
    yield from _build(about, place)
    if nics.is_software(place):
        yield from _software(about, values, in_use)
        return
    yield from _address(about, values)
    device = pci.device(place)
    if device is None:
        yield _no_device(about, place)
    else:
        yield from _pci(about, device, values)
