# SPDX-License-Identifier: Apache-2.0
"""Plans the steps that give NICs to HARP alone: drivers, hugepages and kernel options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from harp.setup import bootline, host, netstate, nics, pages, pci, sysfs
from harp.setup.bind import Bind
from harp.setup.kernel import LoadModule, SetValue
from harp.setup.nics import UIO, VFIO, Nic
from harp.setup.request import PlanError, Request
from harp.setup.steps import Step

_MODULES = {VFIO: ("vfio", "vfio_iommu_type1", VFIO), UIO: ("uio", UIO)}


@dataclass(frozen=True)
class Choice:
    """The user's choices for dpdk devices. `driver` is None for the best one; `page_size` is "2M"
    or "1G"; `hugepages` is MiB for each NIC; `even_if_used` allows a NIC that is in use."""

    driver: Optional[str] = None
    page_size: str = "2M"
    hugepages: int = pages.MIB_PER_NIC
    even_if_used: bool = False


@dataclass(frozen=True)
class Given:
    """A request's NIC, with the settings of its interface. The settings come from the journal
    after a crash. They are None if the NIC had no interface."""

    request: Request
    nic: Nic
    settings: Optional[netstate.Settings]

    @property
    def device(self) -> pci.PciDevice:
        return self.nic.device


def resolved(device: str) -> str:
    """The device with dpdk:IFACE replaced by dpdk:PCI-ID, as the file names it. Raises PlanError
    for an interface without a PCI device."""
    wrappers, scheme, name = device.rpartition("dpdk:")
    if not scheme or wrappers and not wrappers.endswith("|"):
        return device
    place = re.split("[,;]", name)[0]
    full = pci.full_id(place)
    if not full and host.interface(place) is not None:
        behind = pci.of_interface(place)
        if behind is None:
            raise PlanError(
                f"{device}: {place} is not on the PCI bus, so HARP cannot take it over; share it "
                f"as packet:{place}"
            )
        full = behind.id
    return f"{wrappers}dpdk:{full or place}{name[len(place) :]}"


def _remembered(journal: Sequence[Step], pci_id: str) -> Optional[netstate.Settings]:
    for step in journal:
        if isinstance(step, Bind) and step.pci_id == pci_id and step.boot == sysfs.boot():
            return step.settings
    return None


def _check_software(request: Request) -> None:
    if "address" not in request.settings:
        raise PlanError(
            f"{request.device}: a software device has no address that HARP could take over; "
            "give it one with --address ADDRESS/PREFIX"
        )


def find(request: Request, journal: Sequence[Step]) -> Optional[Given]:
    """The request's NIC; None for a software device (virtio_user and others). Raises PlanError if
    there is no such NIC."""
    if nics.is_software(request.place):
        _check_software(request)
        return None
    device = pci.device(request.place)
    if device is None or not device.is_nic:
        known = "".join(f"\n  {one.describe()}" for one in nics.all_nics()) or " none"
        raise PlanError(
            f"{request.device}: there is no NIC {request.place}; this host's NICs:{known}\n"
            f"(software devices: {', '.join(nics.SOFTWARE)})"
        )
    taken = any(isinstance(step, Bind) and step.pci_id == device.id for step in journal)
    nic = nics.look(device, taken)
    return Given(request, nic, nic.settings or _remembered(journal, device.id))


# -- the values of the file


def _gateway(settings: netstate.Settings) -> Optional[str]:
    """The interface's IPv4 gateway: of a default route, else of any other route."""
    ways = [route.split() for route in settings.routes if route.startswith("-4 ")]
    ways = [route for route in ways if "via" in route]
    ways.sort(key=lambda route: route[1] != "default")
    return ways[0][ways[0].index("via") + 1] if ways else None


def complete(given: Given, gpu: Optional[str]) -> None:
    """Fills in missing values from the kernel's settings of the NIC. Raises PlanError if there is
    no address."""
    wanted, found = given.request.settings, given.settings
    if found:
        gateway = _gateway(found)
        if found.ipv4:
            wanted.setdefault("address", found.ipv4[0])
        if gateway and wanted.get("address") in found.ipv4:
            wanted.setdefault("gateway", gateway)
        wanted.setdefault("mtu", str(found.mtu))
        if found.mac:
            wanted.setdefault("mac", found.mac)
        if found.speed:  # without the kernel's driver, sysfs does not tell it to the ranks
            wanted.setdefault("speed_mbps", str(found.speed))
    if gpu:
        wanted.setdefault("gpu", gpu)
    wanted.setdefault("pci_path", str(given.device.folder))
    if "address" not in wanted:
        raise PlanError(
            f"{given.request.device}: the NIC has no IPv4 address that HARP could take over; "
            "give it one with --address ADDRESS/PREFIX"
        )


def _check_address(given: Given) -> None:
    address = given.request.settings["address"]
    own = address.partition("/")[0]
    theirs = [one.partition("/")[0] for one in given.settings.ipv4] if given.settings else []
    if own not in theirs and host.is_local(own):
        raise PlanError(
            f"{given.request.device}: the kernel has {own} on another interface; choose an "
            "address that no host uses"
        )
    if address.endswith("/32") and not given.request.settings.get("gateway"):
        raise PlanError(
            f"{given.request.device}: {address} has no neighbours (prefix /32); add a --gateway"
        )


# -- whether HARP may take the NIC over


def check_use(given: Given, choice: Choice) -> None:
    """Raises PlanError for a NIC that HARP may not take over."""
    nic, device = given.nic, given.request.device
    if nic.refusal:
        raise PlanError(f"{device}: HARP may not take over {nic.name or 'the NIC'}: {nic.refusal}")
    if nic.uses and not choice.even_if_used:
        raise PlanError(
            f"{device}: {nic.name} is in use: {'; '.join(nic.uses)}. End these uses, or add "
            "--even-if-used"
        )


def _check_group(given: Given, wanted: set[str]) -> None:
    others = [one for one in nics.in_the_way(given.device.group) if one.id not in wanted]
    if others:
        named = ", ".join(f"{one.id} ({one.driver})" for one in others)
        raise PlanError(
            f"{given.request.device}: shares IOMMU group {given.device.group} with {named}, and "
            "VFIO needs the whole group: add those NICs with --device, or move the card to "
            "another slot"
        )


def _driver(given: Given, choice: Choice) -> str:
    try:
        driver = nics.choose_driver(given.device, choice.driver)
    except ValueError as wrong:
        raise PlanError(f"{given.request.device}: {wrong}") from None
    if not driver:
        raise PlanError(
            f"{given.request.device}: this kernel has neither vfio-pci nor uio_pci_generic; "
            "install the kernel's package of extra modules, or share the NIC: "
            f"--device packet:{given.nic.name}"
        )
    return driver


# -- the steps


def _driver_steps(given: Given, driver: str) -> list[Step]:
    steps: list[Step] = [LoadModule.of(name) for name in _MODULES[driver]]
    if driver == VFIO and not nics.has_iommu(given.device):
        path = nics.noiommu_value()
        steps.insert(1, SetValue(path, "Y", sysfs.text(sysfs.at(path)) or "N"))
    return steps


def _page_steps(nodes: Sequence[int], choice: Choice, journal: Sequence[Step]) -> list[Step]:
    found: list[Step] = []
    large = pages.total(pages.pool(pages.LARGE_KB, -1)) * 1024
    if large >= choice.hugepages * len(nodes):
        return found
    earlier = {step.folder: step for step in journal if isinstance(step, pages.Pages)}
    folders = [pages.pool(pages.SMALL_KB, node) for node in nodes]
    for folder in sorted(set(folders)):
        wanted = -(-choice.hugepages // 2) * folders.count(folder)
        step = pages.small(folder, wanted, earlier.get(folder))
        if step:
            found.append(step)
    return found


def _boot_steps(nic_count: int) -> list[Step]:
    cards = sum(device.is_gpu for device in pci.devices()) or nic_count
    wanted = pages.gibibytes(cards)
    if bootline.told() >= wanted:
        return []
    memory = re.search(r"MemTotal:\s+(\d+) kB", sysfs.text(sysfs.at("proc/meminfo")))
    if memory and wanted * 1048576 > int(memory.group(1)) * 3 // 4:
        raise PlanError(
            f"{wanted} GiB of hugepages for {cards} cards are too much for this host's "
            f"{int(memory.group(1)) // 1048576} GiB of memory; use --pages 2M"
        )
    tool = bootline.tool()
    if not tool:
        raise PlanError(
            "update-grub and grubby are both missing, so set-up cannot change the kernel's "
            "command line; add by hand: "
            f"{bootline.boot_args(wanted)}, and use --pages 2M until then"
        )
    step = bootline.BootPages(wanted, tool)
    return [] if step.in_place() else [step]


def plan(
    found: list[Given], configured: set[str], choice: Choice, journal: Sequence[Step]
) -> list[Step]:
    """The steps that are not in place yet. `configured` are the PCI ids of existing files; their
    NICs need hugepages, too. Raises PlanError."""
    wanted = {given.device.id for given in found} | configured
    steps: dict[tuple[str, str], Step] = {}
    binds: list[Step] = []
    for given in found:
        _check_address(given)
        if given.device.driver in nics.GIVEN:
            continue
        driver = _driver(given, choice)
        if driver == VFIO and nics.has_iommu(given.device):
            _check_group(given, wanted)
        for step in _driver_steps(given, driver):
            steps.setdefault((step.kind, step.target), step)
        binds.append(Bind.of(given.device, driver, given.nic.settings))
    nodes = [device.node for device in map(pci.device, sorted(wanted)) if device]
    more = _page_steps(nodes, choice, journal) if choice.hugepages else []
    if choice.page_size == "1G":
        more += _boot_steps(len(nodes))
    return [step for step in steps.values() if not step.in_place()] + more + binds


def advice(journal: Sequence[Step]) -> list[str]:
    """Notes for the operator of a host with these steps in place."""
    said = []
    binds = [step for step in journal if isinstance(step, Bind) and step.in_place()]
    groups: dict[str, list[str]] = {}
    for bind in binds:
        device = pci.device(bind.pci_id)
        if device and nics.has_iommu(device):
            groups.setdefault(device.group, []).append(bind.pci_id)
    if len(binds) > sum(map(len, groups.values())):
        said.append(
            "this host has no IOMMU: the NIC can access all of its memory, and jobs must run as "
            "root"
        )
    for group, members in groups.items():
        if len(members) > 1:
            said.append(
                f"{' and '.join(members)} share IOMMU group {group}: one process may use them all, "
                "but two processes may not divide them"
            )
    for step in journal:
        if isinstance(step, bootline.BootPages) and bootline.told() < step.pages:
            said.append(f"reboot to get {step.pages} hugepages of 1 GiB")
    if binds:
        said.append("a reboot drops drivers and 2 MiB pages; run harp setup again after it")
    return said
