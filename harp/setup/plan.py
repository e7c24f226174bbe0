# SPDX-License-Identifier: Apache-2.0
"""From the devices that HARP shall use to the steps that make the host ready."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from harp import _tables
from harp.setup import host
from harp.setup.steps import Blackhole, MakeFolder, Step, WriteFile
from harp.statfile import DEFAULT_FOLDER as RUN_DIR

CONF_DIR = Path("/usr/local/tfabric/tools/config")

_HEADER = "# HARP: one file a NIC. The keys: harp env --defaults\n"


class PlanError(ValueError):
    """What was asked for cannot be set up on this host. The text says why and what
    would do."""


@dataclass
class Request:
    """A NIC as the user asks for it: `settings` are keys of ztcp*.conf, device first."""

    settings: dict[str, str] = field(default_factory=dict)

    @property
    def device(self) -> str:
        return self.settings["device"]

    @property
    def interface(self) -> str:
        """The network interface, without fault wrappers. Raises PlanError for a device
        that set-up does not know."""
        scheme, _, name = _tables.innermost(self.device).partition(":")
        if scheme != "packet":
            raise PlanError(f"device {self.device}: set-up knows packet:IFACE devices; "
                            "write a ztcp*.conf for others by hand")
        return name

    @property
    def own_address(self) -> Optional[str]:
        """HARP's own address without its prefix; None where it shares the kernel's."""
        address = self.settings["address"]
        return None if address == "kernel" else address.partition("/")[0]


def conf_dir() -> Path:
    """Where the ztcp*.conf lie: HARP_CONF_DIR or the default."""
    return Path(os.environ.get("HARP_CONF_DIR") or CONF_DIR)


def run_dir() -> Path:
    """Where processes publish: HARP_RUN_DIR or the default."""
    return Path(os.environ.get("HARP_RUN_DIR") or RUN_DIR)


def conf_files(folder: Path) -> list[Path]:
    """The folder's ztcp*.conf, ztcp2 before ztcp10."""
    def order(path: Path) -> list[object]:
        return [int(part) if part.isdigit() else part
                for part in re.split(r"(\d+)", path.name)]

    return sorted(folder.glob("ztcp*.conf"), key=order)


def updated(text: str, settings: dict[str, str]) -> str:
    """The text with these keys set: lines that hold them are replaced, others,
    comments included, stay; missing ones are added at the end."""
    left = dict(settings)
    lines = []
    for line in text.splitlines():
        key = line.partition("#")[0].partition("=")[0].strip()
        if key in left:
            lines.append(f"{key} = {left.pop(key)}")
        else:
            lines.append(line)
    lines += [f"{key} = {value}" for key, value in left.items()]
    return "\n".join(lines) + "\n"


def _check_values(request: Request) -> None:
    text = updated("", request.settings)
    try:
        _tables.parse(text.encode(), "the plan")
    except _tables.ConfigError as wrong:
        raise PlanError(str(wrong)) from None


def _check_host(request: Request) -> None:
    name = request.interface
    device = host.interface(name)
    if device is None:
        known = ", ".join(one.name for one in host.candidates()) or "none"
        raise PlanError(f"{request.device}: no interface {name} in this network namespace; "
                        f"usable ones: {known} (a pod needs hostNetwork or an interface of its "
                        "own)")
    if not device.ethernet:
        raise PlanError(f"{request.device}: {name} is no Ethernet interface, and HARP needs one")
    if not device.up:
        raise PlanError(f"{request.device}: {name} is down; ip link set {name} up")
    if request.own_address is None and not device.addresses:
        raise PlanError(f"{request.device}: {name} has no IPv4 address to share; give it one, or "
                        "give HARP one of its own with --address ADDRESS/PREFIX")
    if request.own_address is not None and host.is_local(request.own_address):
        raise PlanError(f"{request.device}: the kernel holds {request.own_address} itself; take an "
                        "address that no host uses, or share the kernel's with --address kernel")


def _check_together(requests: list[Request]) -> None:
    devices: set[str] = set()
    addresses: set[str] = set()
    for request in requests:
        if request.interface in devices:
            raise PlanError(f"{request.device} is named twice; one file serves an interface")
        devices.add(request.interface)
        if request.own_address in addresses:
            raise PlanError(f"address {request.own_address} is given to two devices")
        if request.own_address:
            addresses.add(request.own_address)


def _missing_folders(path: Path) -> list[Path]:
    missing: list[Path] = []
    while not path.is_dir():
        missing.insert(0, path)
        path = path.parent
    return missing


def _folders(conf: Path, run: Path) -> list[Step]:
    # Everybody's jobs publish in the run folder; the sticky bit keeps them from
    # removing each other's files.
    modes = {path: 0o755 for path in [*_missing_folders(conf), *_missing_folders(run)]}
    if run in modes:
        modes[run] = 0o1777
    return [MakeFolder(str(path), mode) for path, mode in modes.items()]


@dataclass(frozen=True)
class Existing:
    """A ztcp*.conf that is there: its device as it is written, without fault
    wrappers, and the address it uses."""

    path: Path
    device: str
    inner: str
    address: str


def existing_files(folder: Path) -> list[Existing]:
    """What is configured already. Raises PlanError for a file that is wrong."""
    found = []
    for path in conf_files(folder):
        try:
            values = _tables.load(path)
        except _tables.ConfigError as wrong:
            raise PlanError(f"{wrong} (mend or remove the file first: with it every job would "
                            "decline)") from None
        device = values["device"][0]
        found.append(Existing(path, device, _tables.innermost(device), values["address"][0]))
    return found


def _file(request: Request, folder: Path, file: Optional[Existing], taken: set[str]) -> WriteFile:
    if file is not None:
        before = file.path.read_text(errors="surrogateescape")
        return WriteFile(str(file.path), updated(before, request.settings), before)
    number = 0
    while f"ztcp{number}.conf" in taken:
        number += 1
    taken.add(f"ztcp{number}.conf")
    return WriteFile(str(folder / f"ztcp{number}.conf"), _HEADER + updated("", request.settings),
                     None)


def _keeps_values(step: WriteFile) -> bool:
    """Whether the file says already what the step would write, however it spells it."""
    if step.before is None:
        return False
    try:
        return (_tables.parse(step.before.encode(errors="surrogateescape"))
                == _tables.parse(step.text.encode(errors="surrogateescape")))
    except _tables.ConfigError:
        return False


def plan(requests: list[Request]) -> list[Step]:
    """The steps that are not in place yet, in order. A device whose address is not
    asked for keeps that of its file, or shares the kernel's. Raises PlanError,
    HostError or OSError."""
    folder = conf_dir()
    files = {file.inner: file for file in existing_files(folder)}
    for request in requests:
        file = files.get(_tables.innermost(request.device))
        request.settings.setdefault("address", file.address if file else "kernel")
        _check_values(request)
        _check_host(request)
    _check_together(requests)
    taken = {file.path.name for file in files.values()}
    steps = _folders(folder, run_dir())
    for request in requests:
        address = request.own_address
        if address and host.forwards(request.interface) and not host.has_blackhole(address):
            steps.append(Blackhole(address))
        step = _file(request, folder, files.get(_tables.innermost(request.device)), taken)
        if not _keeps_values(step):
            steps.append(step)
    return steps
