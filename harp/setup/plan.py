# SPDX-License-Identifier: Apache-2.0
"""Plans the steps that make the host ready for the requested devices."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from harp import _tables
from harp.observe.statfile import DEFAULT_FOLDER as RUN_DIR
from harp.setup import arp, dpdk, host, leftovers, nic_settings, one_subnet, pci
from harp.setup.home import missing_folders
from harp.setup.request import (
    ON_INTERFACE,
    PlanError,
    Request,
    WrongUsage,
    is_on_interface,
    place_of,
)
from harp.setup.steps import Blackhole, FolderMode, MakeFolder, Step, WriteFile, read_file

CONF_DIR = Path("/usr/local/tfabric/tools/config")

SCHEMES = ("packet:", "xdp:", "dpdk:")  # the devices that set-up handles

_HEADER = "# HARP: one file a NIC. The keys: harp env --defaults\n"


def conf_dir() -> Path:
    """The folder of the ztcp*.conf: HARP_CONF_DIR or the default."""
    return Path(os.environ.get("HARP_CONF_DIR") or CONF_DIR)


def run_dir() -> Path:
    """The folder of the processes' statistics files: HARP_RUN_DIR or the default."""
    return Path(os.environ.get("HARP_RUN_DIR") or RUN_DIR)


def conf_files(folder: Path) -> list[Path]:
    """The folder's ztcp*.conf, ztcp2 before ztcp10."""

    def order(path: Path) -> list[object]:
        return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]

    return sorted(folder.glob("ztcp*.conf"), key=order)


def updated(text: str, settings: dict[str, str]) -> str:
    """The text with these keys set. Lines with other keys and comments stay; missing keys are
    added at the end. The value "" removes a key."""
    left = dict(settings)
    lines = []
    for line in text.splitlines():
        key = line.partition("#")[0].partition("=")[0].strip()
        if key not in left:
            lines.append(line)
        elif left[key]:
            lines.append(f"{key} = {left[key]}")
        left.pop(key, None)
    lines += [f"{key} = {value}" for key, value in left.items() if value]
    return "\n".join(lines) + "\n"


def _check_values(request: Request) -> None:
    for key in set(request.settings) - {key["name"] for key in _tables.keys()}:
        meant = _tables.nearest_key(key)
        question = f" (do you mean {meant}?)" if meant else ""
        raise WrongUsage(f"unknown key {key!r}{question}; harp env --defaults lists them")
    try:
        _tables.parse(updated("", request.settings).encode(), "")
    except _tables.ConfigError as wrong:
        raise WrongUsage(str(wrong)) from None


def _check_text(step: WriteFile) -> None:
    """Checks the whole file: each new value is valid alone, but may contradict a value that the
    file holds already."""
    try:
        _tables.parse(step.text.encode(errors="surrogateescape"), step.path)
    except _tables.ConfigError as wrong:
        raise PlanError(f"with this change, {wrong}") from None


def _check_scheme(request: Request) -> None:
    if f"{request.scheme}:" in SCHEMES:
        return
    _check_values(request)  # a text that is no device at all gets the parser's message
    raise WrongUsage(
        f"device {request.device}: set-up handles packet:IFACE, xdp:IFACE and dpdk:NIC; "
        "write the ztcp*.conf of other devices by hand"
    )


def _check_host(request: Request) -> None:
    name = request.place
    device = host.interface(name)
    if device is None:
        raise PlanError(
            f"{request.device}: no interface {name} in this network namespace; "
            f"usable interfaces: {host.usable()} (a pod needs hostNetwork or its own interface)"
        )
    if not device.ethernet:
        raise PlanError(f"{request.device}: {name} is not an Ethernet interface; HARP needs one")
    if not device.up:
        raise PlanError(f"{request.device}: {name} is down; ip link set {name} up")
    if request.own_address is None and not device.addresses:
        raise PlanError(
            f"{request.device}: {name} has no IPv4 address to share; add one, or give HARP its "
            "own with --address ADDRESS/PREFIX"
        )
    if request.own_address is not None and host.is_local(request.own_address):
        raise PlanError(
            f"{request.device}: {request.own_address} is one of the kernel's addresses; choose an "
            "address that no host uses, or share the kernel's with --address kernel"
        )


def _interface_of(request: Request) -> str:
    """The device's kernel interface; "" for none."""
    if request.scheme in ON_INTERFACE:
        return request.place
    device = pci.device(request.place)
    return device.interfaces[0] if device and device.interfaces else ""


def check_holders(requests: list[Request]) -> None:
    """Probes by ARP whether other hosts use the requested addresses. Raises PlanError.

    The check is skipped without CAP_NET_RAW, and for a device whose interface is missing or down.
    The job's ranks probe again at their start."""
    for request in requests:
        device = host.interface(_interface_of(request))
        own = request.own_address
        if own is None or device is None or not device.up:
            continue
        try:
            other = arp.holder(device.name, own, request.settings.get("mac") or device.mac)
        except PermissionError:
            continue
        if other:
            raise PlanError(
                f"{request.device}: another host has {own} already: {other} answers ARP for it; "
                "remove the address from that host, or choose an address that no host has"
            )


def _check_together(requests: list[Request]) -> None:
    own: dict[str, list[Optional[str]]] = {}
    schemes: dict[str, set[str]] = {}
    addresses: set[str] = set()
    for request in requests:
        earlier = own.setdefault(request.place, [])
        earlier.append(request.own_address)
        kinds = schemes.setdefault(request.place, set())
        kinds.add(request.scheme)
        if len(earlier) > 1 and (kinds != {"packet"} or None in earlier):
            raise WrongUsage(
                f"{request.device} is named twice: one file serves a NIC. (Several files may share "
                "a packet device if each has its own --address.)"
            )
        if request.own_address in addresses:
            raise WrongUsage(f"address {request.own_address} is given twice")
        if request.own_address:
            addresses.add(request.own_address)


# Jobs of all users write to the run folder. The sticky bit keeps users from removing each other's
# files.
_RUN_MODE = 0o1777


def _closed_mode(run: Path) -> Optional[int]:
    """The mode of a run folder that all users can read but only its owner can write to; None for
    another one. A folder with a group of writers or closed to other users is somebody's choice, and
    others' folders are not ours to change."""
    try:
        status = run.lstat()
    except OSError:
        return None
    mode = stat.S_IMODE(status.st_mode)
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    chosen = mode & (stat.S_IWGRP | stat.S_IWOTH) or not mode & stat.S_IRWXO
    return mode if ours and not chosen and os.access(run, os.W_OK) else None


def _opened(run: Path) -> list[Step]:
    """The step that lets all users write to a run folder. A folder that other programs use, such as
    /run, must not become everybody's."""
    mode = _closed_mode(run)
    if mode is None or not leftovers.are_alone_in(str(run)):
        return []
    return [FolderMode(str(run), _RUN_MODE, mode)]


def _folders(conf: Path, run: Path) -> list[Step]:
    modes = {path: 0o755 for path in [*missing_folders(conf), *missing_folders(run)]}
    if run in modes:
        modes[run] = _RUN_MODE
    made: list[Step] = [MakeFolder(str(path), mode) for path, mode in modes.items()]
    return made if run in modes else made + _opened(run)


@dataclass(frozen=True)
class Existing:
    """A ztcp*.conf of the folder. `device` is its text in the file, `inner` the same without fault
    wrappers; `gateway` is "" for none."""

    path: Path
    device: str
    inner: str
    address: str
    gateway: str

    @property
    def place(self) -> str:
        """The interface or DPDK device that the file configures."""
        return place_of(self.device)


def _existing(path: Path, values: dict[str, tuple[str, str]]) -> Existing:
    device = values["device"][0]
    return Existing(
        path, device, _tables.innermost(device), values["address"][0], values["gateway"][0]
    )


def existing_files(folder: Path) -> list[Existing]:
    """The folder's ztcp*.conf. Raises PlanError for a file with an error."""
    found = []
    for path in conf_files(folder):
        try:
            values = _tables.load(path)
        except _tables.ConfigError as wrong:
            raise PlanError(
                f"{wrong} (correct or remove the file first: HARP declines every job because of it)"
            ) from None
        found.append(_existing(path, values))
    return found


def files_after(steps: Sequence[Step], folder: Path) -> list[Existing]:
    """The folder's ztcp*.conf as they will be when these steps are made. Raises PlanError."""
    found = {file.path: file for file in existing_files(folder)}
    for step in steps:
        if isinstance(step, WriteFile):
            text = step.text.encode(errors="surrogateescape")
            found[Path(step.path)] = _existing(Path(step.path), _tables.parse(text))
    return list(found.values())


def _is_absent(file: Existing) -> bool:
    """Whether the file's interface was renamed, removed or named wrongly."""
    return is_on_interface(file.device) and host.interface(file.place) is None


def _check_exists(file: Existing) -> None:
    """Refuses to set up a file whose interface is absent."""
    if _is_absent(file):
        raise PlanError(
            f"{file.path.name} names {file.place}, which is not in this network namespace; "
            f"remove the file (rm {file.path}, or harp setup undo), then run harp setup "
            f"--device …; usable interfaces: {host.usable()}"
        )


def _file_of(request: Request, alone: bool, files: list[Existing]) -> Optional[Existing]:
    """The file that a request changes; None for a new file. `files` are those of the request's
    device that no other request has taken. `alone`: no other request names the device."""
    if not alone:
        return files[0] if files else None
    if len(files) < 2:
        return files[0] if files else None
    if "address" in request.settings:
        return None
    listed = ", ".join(f"{file.path.name} ({file.address})" for file in files)
    told_apart = len({file.address for file in files}) == len(files)
    remedy = "choose one with --address" if told_apart else "remove those that repeat an address"
    raise WrongUsage(f"{len(files)} files configure {request.place}: {listed}; {remedy}")


def _assigned(requests: list[Request], files: list[Existing]) -> list[Optional[Existing]]:
    """The file that each request changes: the one of its device and address, else one of its
    device, else None (a new file). Raises WrongUsage."""
    left = list(files)
    found: dict[int, Optional[Existing]] = {}
    for i, request in enumerate(requests):
        same = (request.place, request.settings.get("address"))
        exact = next((file for file in left if (file.place, file.address) == same), None)
        if exact:
            left.remove(exact)
            found[i] = exact
    for i, request in enumerate(requests):
        if i in found:
            continue
        alone = [one.place for one in requests].count(request.place) == 1
        about = _file_of(request, alone, [file for file in left if file.place == request.place])
        if about:
            left.remove(about)
        found[i] = about
    return [found[i] for i in range(len(requests))]


def _file(request: Request, folder: Path, file: Optional[Existing], taken: set[str]) -> WriteFile:
    if file is not None:
        before = read_file(file.path)
        return WriteFile(str(file.path), updated(before, request.settings), before)
    number = 0
    while f"ztcp{number}.conf" in taken:
        number += 1
    taken.add(f"ztcp{number}.conf")
    return WriteFile(
        str(folder / f"ztcp{number}.conf"), _HEADER + updated("", request.settings), None
    )


def _keeps_values(step: WriteFile) -> bool:
    """Whether the file's values are already those of the step, whatever their spelling."""
    if step.before is None:
        return False
    try:
        return _tables.parse(step.before.encode(errors="surrogateescape")) == _tables.parse(
            step.text.encode(errors="surrogateescape")
        )
    except _tables.ConfigError:
        return False


def _check_shared(given: dpdk.Given, files: list[Existing]) -> None:
    for file in files:
        if is_on_interface(file.device) and file.place == given.nic.name:
            raise PlanError(
                f"{given.request.device}: {file.path} shares {given.nic.name} with the "
                "kernel; remove that file first (harp setup undo, if set-up wrote it)"
            )


def _plan_dpdk(
    wanted: list[tuple[Request, Optional[Existing]]],
    files: list[Existing],
    choice: dpdk.Choice,
    journal: Sequence[Step],
) -> list[Step]:
    """Completes these requests; returns the steps that bind their NICs to DPDK's drivers."""
    configured = {file.place for file in files if file.inner.startswith("dpdk:")}
    for request, file in wanted:
        if file is not None:
            request.settings.setdefault("address", file.address)
            request.settings.setdefault("gateway", file.gateway)
    found = [given for given in (dpdk.find(one, journal) for one, _ in wanted) if given]
    gpus = pci.nearest_gpus(
        [given.device for given in found], [device for device in pci.devices() if device.is_gpu]
    )
    for given in found:
        dpdk.check_use(given, choice)
        if given.request.place not in configured:
            dpdk.complete(given, gpus.get(given.device.id))
        _check_shared(given, files)
    for request, _ in wanted:
        _check_values(request)
    return dpdk.plan(found, configured, choice, journal)


def _interface_steps(request: Request) -> list[Step]:
    """The blackhole route that keeps a forwarding kernel from the frames for HARP's address; and
    the settings of the NIC that an xdp device needs."""
    address = request.own_address
    found: list[Step] = []
    if address and host.forwards(request.place) and not host.has_blackhole(address):
        found.append(Blackhole(address))
    return found + (nic_settings.steps(request.place) if request.scheme == "xdp" else [])


def _shared(wanted: list[tuple[Request, Optional[Existing]]], files: list[Existing]) -> list[str]:
    """The interfaces that HARP shares with the kernel when the requests are fulfilled."""
    changed = [file for _, file in wanted]
    kept = [
        file.place
        for file in files
        if file not in changed and is_on_interface(file.device) and file.address == "kernel"
    ]
    return kept + [
        request.place
        for request, _ in wanted
        if request.scheme in ON_INTERFACE and request.own_address is None
    ]


def notes(requests: list[Request]) -> list[str]:
    """A line for each file that stays beside the new ones that the planned requests write, for each
    other file whose interface is absent, and for a run folder that stays closed."""
    files = existing_files(conf_dir())
    changed = _assigned(requests, files)
    run = run_dir()
    found = []
    if _closed_mode(run) is not None and not leftovers.are_alone_in(str(run)):
        found.append(
            f"{run} has other files than HARP's, so set-up does not let all users write to it; "
            "name a folder of HARP's own in HARP_RUN_DIR"
        )
    for file in (file for file in files if file not in changed):
        if _is_absent(file):
            found.append(
                f"{file.path.name} names {file.place}, which is not in this network namespace: "
                f"ranks whose home NIC it is decline; remove the file: rm {file.path}"
            )
        elif None in changed:
            found.append(
                f"{file.path.name} ({file.device}) stays in use; remove it to drop that NIC"
            )
    return found


def plan(requests: list[Request], choice: dpdk.Choice, journal: Sequence[Step]) -> list[Step]:
    """The steps that are not in place yet, in order.

    A request without an address keeps the address of its file. A dpdk device without a file takes
    over the kernel's address, and the others share it. `journal` holds the steps that earlier runs
    have begun. Raises PlanError, HostError, StepError or OSError."""
    folder = conf_dir()
    files = existing_files(folder)
    steps = _folders(folder, run_dir())
    for request in requests:
        _check_scheme(request)
    wanted = list(zip(requests, _assigned(requests, files)))
    for request, file in wanted:
        if request.scheme in ON_INTERFACE:
            if file:
                _check_exists(file)
            request.settings.setdefault("address", file.address if file else "kernel")
            _check_values(request)
            _check_host(request)
    given = [(request, file) for request, file in wanted if request.scheme == "dpdk"]
    steps += _plan_dpdk(given, files, choice, journal)
    _check_together(requests)
    steps += one_subnet.steps(_shared(wanted, files))
    taken = {file.path.name for file in files}
    for request, file in wanted:
        steps += _interface_steps(request) if request.scheme in ON_INTERFACE else []
        step = _file(request, folder, file, taken)
        _check_text(step)
        if not _keeps_values(step):
            steps.append(step)
    return steps
