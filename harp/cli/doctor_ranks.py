# SPDX-License-Identifier: Apache-2.0
"""Checks of `harp doctor` that compare the running ranks of this host.

All ranks of a host must tell NCCL the same devices. A rank finds its devices in its configuration
folder and its network namespace. So ranks of one job must agree in both.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from harp import loader
from harp.cli.findings import Finding, fault, note, ok
from harp.observe import descriptors, foreign
from harp.setup.plan import CONF_DIR

ABOUT = "ranks"
PROC = Path("/proc")
# The variables of the environment that change the devices.
SETTINGS = ("HARP_DEVICES", "HARP_DISABLE", "HARP_SPEED_MBPS")
# The variables by which launchers tell the processes of a job from those of other jobs.
JOBS = (
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("PMIX_NAMESPACE",),
    ("OMPI_MCA_ess_base_jobid",),
    ("MASTER_ADDR", "MASTER_PORT"),
)
LARGEST = 64 << 10  # bytes of a ztcp*.conf
LARGEST_LIBRARY = 64 << 20  # the plugin takes less than 10 MiB without symbols
LIBRARIES_MOST = 8  # of a process, which loads one
BYTES_MOST = 512 << 20  # of the libraries of a user's processes; files count once
SHOWN = 4  # processes in a line

# A line of /proc/PID/maps. The kernel escapes no character of the path but the line's end.
_LIBRARY = re.compile(
    rb"^[0-9a-f]+-[0-9a-f]+ \S+ [0-9a-f]+ \S+ \d+ +(/(?:.*/)?libnccl-net[^/\n]*\.so)$", re.MULTILINE
)


@dataclass(frozen=True)
class View:
    """What a process sees: its folder, the names and contents of the ztcp*.conf in it, its network
    namespace, and SETTINGS ("unset" without a value). `host` is its UTS namespace, because NCCL
    tells hosts apart by their names. `job` is "" if no launcher names the job."""

    pid: int
    job: str
    host: str
    folder: str
    files: tuple[tuple[str, str], ...]
    network: str
    settings: tuple[str, ...]


def _digest(path: Path) -> str:
    """Tells the contents of a file from others. Raises OSError."""
    try:
        return hashlib.sha256(foreign.read(path, LARGEST, follow=True)).hexdigest()
    except foreign.ForeignError as wrong:
        return str(wrong)


def _files(folder: Path) -> tuple[tuple[str, str], ...]:
    """Raises OSError, but not for a folder that is missing."""
    try:
        names = sorted(name for name in os.listdir(folder) if re.fullmatch(r"ztcp.*\.conf", name))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple((name, _digest(folder / name)) for name in names)


def _environment(process: Path) -> dict[str, str]:
    pairs = (one.partition(b"=") for one in (process / "environ").read_bytes().split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def view(process: Path) -> View:
    """What the process of a folder such as /proc/12 sees. Raises OSError."""
    environment = _environment(process)
    folder = environment.get("HARP_CONF_DIR") or str(CONF_DIR)
    start = process / "root" if folder.startswith("/") else process / "cwd"
    job = next((names for names in JOBS if all(environment.get(name) for name in names)), ())
    return View(
        pid=int(process.resolve().name),
        job=" ".join(f"{name}={environment[name]}" for name in job),
        host=os.readlink(process / "ns/uts"),
        folder=folder,
        files=_files(start / folder.lstrip("/")),
        network=os.readlink(process / "ns/net"),
        settings=tuple(environment.get(name) or "unset" for name in SETTINGS),
    )


class _Libraries:
    """The libraries that were looked at. A user may map any number of false ones."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], bool] = {}  # is HARP's plugin, by device and inode
        self._read: Counter[Optional[int]] = Counter()  # bytes, by user

    def is_harp(self, path: Path, user: Optional[int]) -> bool:
        """Whether a file is HARP's plugin. Raises OSError, or ForeignError for a file that is none,
        or that is one too many of this user."""
        fd = foreign.open_file(path, follow=True)
        try:
            status = os.fstat(fd)
            key = (status.st_dev, status.st_ino)
            if key not in self._known:
                if self._read[user] + status.st_size > BYTES_MOST:
                    raise foreign.ForeignError(f"{path}: too many bytes of this user's libraries")
                content = foreign.read_fd(path, fd, LARGEST_LIBRARY)
                self._read[user] += status.st_size
                self._known[key] = loader.holds_harp(content)
            return self._known[key]
        finally:
            os.close(fd)


def _has_harp(process: Path, libraries: _Libraries) -> bool:
    """Whether a process has loaded HARP's plugin. Raises OSError. The process may have put another
    file into the place of the library since it was loaded."""
    user = descriptors.real_user(process)
    paths = sorted(set(_LIBRARY.findall((process / "maps").read_bytes())))
    for found in paths[:LIBRARIES_MOST]:
        try:
            if libraries.is_harp(Path(f"{process}/root{os.fsdecode(found)}"), user):
                return True
        except foreign.ForeignError:
            continue
    return False


def running() -> list[View]:
    """The processes of this host that have loaded HARP, but this one. Leaves out those that this
    user may not look at."""
    libraries = _Libraries()
    found = []
    for process in PROC.iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            if _has_harp(process, libraries):
                found.append(view(process))
        except OSError:  # it has ended, or belongs to another user
            continue
    return sorted(found, key=lambda one: one.pid)


def _printable(text: str) -> str:
    return foreign.text(os.fsencode(text))


def _names(views: Sequence[View]) -> str:
    pids = [str(one.pid) for one in views]
    more = f" and {len(pids) - SHOWN} more" if len(pids) > SHOWN else ""
    return f"process{'es' if len(pids) > 1 else ''} {', '.join(pids[:SHOWN])}{more}"


Key = Callable[[View], object]


def _groups(views: Iterable[View], key: Key) -> list[list[View]]:
    groups: dict[object, list[View]] = {}
    for one in views:
        groups.setdefault(key(one), []).append(one)
    return list(groups.values())


def _differ(views: list[View], key: Key, said: Key) -> str:
    """Which processes differ in a value; "" if all are equal."""
    groups = _groups(views, key)
    if len(groups) == 1:
        return ""
    return "; ".join(f"{_names(group)}: {said(group[0])}" for group in groups)


def _users(views: Sequence[View]) -> str:
    return f"{_names(views)} {'use' if len(views) > 1 else 'uses'} HARP"


def _folder(one: View) -> str:
    return _printable(one.folder) + ("" if one.files else " without ztcp*.conf")


def _check_job(views: list[View]) -> Iterator[Finding]:
    """Compares the ranks of one job on one host."""
    networks = _differ(views, lambda one: one.network, lambda one: one.network)
    folders = _differ(views, lambda one: one.files, _folder)
    why = "so NCCL sees different devices, and its init may fail or hang"
    if networks:
        yield fault(
            ABOUT,
            f"ranks of one job are in different network namespaces ({networks}), {why}; start all "
            "ranks of a host in one network namespace",
        )
    if folders:
        yield fault(
            ABOUT,
            f"ranks of one job read different ztcp*.conf ({folders}), {why}; give all ranks of a "
            "host the same folder, in their containers, too, and the same HARP_CONF_DIR",
        )
    for i, name in enumerate(SETTINGS):
        values = _differ(
            views, lambda one: one.settings[i], lambda one: _printable(one.settings[i])
        )
        if values:
            yield fault(
                ABOUT,
                f"ranks of one job have different values of {name} ({values}), {why}; set the "
                "same value for all ranks of a host",
            )


def _check_own(views: list[View], own: View) -> Iterator[Finding]:
    """Compares the ranks with this command, whose other findings may not apply to them."""
    elsewhere = [one for one in views if one.network != own.network]
    if elsewhere:
        yield note(
            ABOUT,
            f"{_users(elsewhere)} in another network namespace, which this check does not see; "
            f"nsenter --target {elsewhere[0].pid} --net harp doctor",
        )
    for group in _groups((one for one in views if one.files != own.files), _folder):
        yield note(
            ABOUT,
            f"{_users(group)} with {_folder(group[0])}, and this check read other files; "
            "set HARP_CONF_DIR, or run it in their container",
        )


def check() -> Iterator[Finding]:
    """Compares the processes that have loaded HARP with each other and with this one."""
    views = running()
    own = view(PROC / "self")
    findings = [
        finding
        for group in _groups((one for one in views if one.job), lambda one: (one.job, one.host))
        for finding in _check_job(group)
    ]
    findings += _check_own(views, own)
    yield from findings
    if views and not findings:
        yield ok(
            ABOUT, f"{_users(views)} with the files and in the network namespace of this check"
        )
