# SPDX-License-Identifier: Apache-2.0
"""Sites and their programs: configurations, ranks of harp-perf, and their output.

A Site is a folder with ztcp*.conf and a run folder. A Program runs at a site; its output lines are
kept with their times. A Perf is one rank of harp-perf.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from harp import paths
from harp.observe import statfile
from tools.hosts.lab import Host

START_S = 60.0  # seconds for a program's start on a busy machine
END_S = 30.0  # seconds for a program's end on a busy machine

Args = Sequence[str]


class TooLate(AssertionError):
    """A timeout passed. The message says which, with the programs' output."""


@dataclass
class Site:
    """The place and configuration of a rank: a folder with ztcp*.conf and a run folder.

    `prefix` precedes its command line (a namespace, dropped capabilities).
    `environment` is added to this process's.
    """

    folder: Path
    prefix: Args = ()
    environment: dict[str, str] = field(default_factory=dict)
    address: str = ""  # the address that peers see, without prefix

    def __post_init__(self) -> None:
        self.run_folder.mkdir(parents=True, exist_ok=True)

    @property
    def run_folder(self) -> Path:
        return self.folder / "run"

    def configure(self, text: str, name: str = "ztcp0.conf") -> Site:
        (self.folder / name).write_text(text)
        return self

    def command(self, args: Args) -> list[str]:
        return [*self.prefix, *args]

    def all_environment(self) -> dict[str, str]:
        # Settings of this process must not reach the rank.
        inherited = {k: v for k, v in os.environ.items() if not _is_setting(k)}
        return {
            **inherited,
            "HARP_CONF_DIR": str(self.folder),
            "HARP_RUN_DIR": str(self.run_folder),
            # Python loses the end of a long line in a pipe if its streams are unbuffered and a
            # signal interrupts the write.
            "PYTHONUNBUFFERED": "",
            **self.environment,
        }

    def published(self) -> list[statfile.Process]:
        """The statistics files of the site's processes."""
        return statfile.scan([self.run_folder])


def _is_setting(name: str) -> bool:
    return (name.startswith("HARP_") and name != "HARP_BUILD_DIR") or name.startswith("NCCL_")


def _behind(faults: str, device: str) -> str:
    return f"fault:{faults}|{device}" if faults else device


def packet_site(
    folder: Path,
    host: Host,
    own_address: bool = False,
    faults: str = "",
    port: str = "packet",
    **keys: object,
) -> Site:
    """HARP on a host's interface; faults: a specification for the fault port; port: packet or
    xdp. It has one instance, whatever the machine's number of CPUs, unless a key says otherwise:
    None leaves the key to HARP's default."""
    address = f"{host.own_address}/{host.prefix}" if own_address else "kernel"
    device = f"{port}:{host.interface}"
    lines = {"device": _behind(faults, device), "address": address, "instances": 1, **keys}
    site = Site(
        folder,
        host.command([]),
        address=host.own_address if own_address else host.address,
    )
    return site.configure(
        "".join(f"{key} = {value}\n" for key, value in lines.items() if value is not None)
    )


def open_files(pid: int) -> list[str]:
    """What the descriptors of a process lead to."""
    found = []
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(one))
    return found


def wire_path() -> Path:
    """A new name for a wire. The ends of the wire remove its files; see remove_wire."""
    return Path(f"/dev/shm/harp-test-{secrets.token_hex(6)}")


def remove_wire(path: Path) -> None:
    """Removes the files of a wire whose ends were killed."""
    for left in path.parent.glob(f"{path.name}*"):
        left.unlink()


def wire_site(folder: Path, wire: Path, number: int, **keys: object) -> Site:
    """One end of a wire between two processes of this machine; number: 1 or 2."""
    return _end_site(folder, number, **{"device": f"wire:{wire}", **keys})


def _end_site(folder: Path, number: int, **keys: object) -> Site:
    address = f"10.9.0.{number}"
    lines = {"address": f"{address}/24", **keys}
    site = Site(folder, address=address)
    return site.configure("".join(f"{key} = {value}\n" for key, value in lines.items()))


def ethdev_devices(socket: Path) -> tuple[str, str]:
    """The two devices of a DPDK link with TSO: vhost, which makes the socket and can reference
    memory, and virtio_user, which connects to it and copies."""
    return (
        f"dpdk:net_vhost0,iface={socket},tso=1",
        f"dpdk:virtio_user0,path={socket},queue_size=1024,mrg_rxbuf=1",
    )


def ethdev_site(folder: Path, socket: Path, number: int, faults: str = "", **keys: object) -> Site:
    """One end of a DPDK link; number: 1 (vhost) or 2 (virtio_user)."""
    device = ethdev_devices(socket)[number - 1]
    return _end_site(folder, number, device=_behind(faults, device), **keys)


class Program:
    """A program at a site. `said` has the lines of its standard error with their times."""

    def __init__(self, site: Site, args: Args) -> None:
        self.site = site
        self.said: list[tuple[float, str]] = []
        self.process = subprocess.Popen(
            site.command(args),
            env=site.all_environment(),
            cwd=site.folder,  # for core files
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._readers = [threading.Thread(target=self._listen, daemon=True)]
        self._readers[0].start()

    def _listen(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.said.append((time.monotonic(), line.rstrip("\n")))

    def lines(self, mark: str = "") -> list[str]:
        """The output lines so far that contain `mark`."""
        return [line for _, line in self.said if mark in line]

    @property
    def warnings(self) -> list[str]:
        return self.lines("NCCL WARN")

    def wait_for_line(self, mark: str, timeout: float) -> tuple[float, str]:
        """The time and text of the first line with the mark. Raises TooLate after `timeout`
        seconds."""
        limit = time.monotonic() + timeout
        while True:
            for moment, line in list(self.said):
                if mark in line:
                    return moment, line
            if time.monotonic() > limit:
                raise TooLate(f"no {mark!r} in {timeout} s: {self.lines()}")
            time.sleep(0.005)

    def signal(self, number: int) -> float:
        """Sends a signal. Returns the time."""
        moment = time.monotonic()
        self.process.send_signal(number)
        return moment

    def wait(self, timeout: float = END_S) -> int:
        """Waits for the end. Returns the exit status; all output is read then. Raises TooLate
        after `timeout` seconds."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            late = f"{self.process.args!r} lives after {timeout} s; {self.lines()}"
            raise TooLate(late) from None
        for reader in self._readers:
            reader.join(5)
        return status

    def end(self) -> None:
        """Ends it if it runs, even if it is stopped. With HARP_TEST_GENTLY it gets 3 s to end at
        the end of its input: a killed process writes no coverage counts."""
        assert self.process.stdin
        if os.environ.get("HARP_TEST_GENTLY") and self.process.poll() is None:
            with suppress(BrokenPipeError, subprocess.TimeoutExpired):
                self.process.stdin.close()
                self.process.wait(3)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.send_signal(signal.SIGCONT)
        self.process.wait(60)  # on a busy machine
        for reader in self._readers:
            reader.join(5)
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class Perf(Program):
    """One rank of harp-perf. program: a copy of it; None: the built one."""

    def __init__(
        self,
        site: Site,
        args: Args,
        rank: int,
        rendezvous: str,
        nranks: int = 2,
        program: Optional[Path] = None,
    ) -> None:
        where = ["--rank", str(rank), "--nranks", str(nranks), "--rendezvous", rendezvous]
        super().__init__(site, [str(program or paths.perf_program()), *args, *where])
        # A thread reads its standard output: a full pipe would block it.
        self.table: list[str] = []
        self._readers.append(threading.Thread(target=self._collect, daemon=True))
        self._readers[1].start()

    def _collect(self) -> None:
        assert self.process.stdout
        self.table.extend(self.process.stdout)

    def wrong(self) -> list[int]:
        """The number of wrong elements in each row of its table."""
        return [int(line.split()[8]) for line in self.table if not line.startswith("#")]


WRONG_ELEMENTS = re.compile(r"(\d+) (?:wrong elements|elements arrived wrong)")


def wrong_elements(rank: Perf) -> Optional[int]:
    """The number of wrong elements that a failed rank reports; None without a report."""
    told = [WRONG_ELEMENTS.search(line) for line in rank.lines()]
    return max((int(found.group(1)) for found in told if found), default=None)


def wait_until(
    what: Callable[[], Any], timeout: float, why: str, of: Sequence[Program] = ()
) -> Any:
    """Waits until the function returns a true value, and returns it. Raises TooLate with `why` and
    the programs' output after `timeout` seconds, or if one of them has ended."""
    limit = time.monotonic() + timeout
    while True:
        found = what()
        if found:
            return found
        late = time.monotonic() > limit
        if late or any(program.process.poll() is not None for program in of):
            said = [program.lines() for program in of]
            raise TooLate(f"{why} in {timeout} s: {said}")
        time.sleep(0.01)
