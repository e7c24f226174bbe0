# SPDX-License-Identifier: Apache-2.0
"""Hosts for tests and measurements: network namespaces on a virtual wire.

    with Lab(hosts=2, wire="veth-1500") as lab:
        server = lab.hosts[0].popen(["iperf3", "-s", "-1"])
        lab.hosts[1].run(["iperf3", "-c", lab.hosts[0].address])

Two hosts are the ends of one veth pair. A bridge joins more hosts. A relay, a program between two
hosts, drops, reorders and corrupts frames.

A lab needs root. It makes namespaces with unique names and removes them on close, Ctrl-C, SIGTERM
and SIGHUP. Each owner holds a file lock, which the kernel releases when the owner dies. So the next
lab finds and removes the namespaces of a killed owner (see `clean`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Dict, List, Mapping, Optional, Sequence, Type

from tools.hosts.relay import Relay, RelaySpec

LOCKS = Path("/run/harp-lab")
PREFIX = "harp-"
FOLDER_PREFIX = "harp-lab-"
INTERFACE = "eth0"
OFFLOADS = ("tso", "gso", "gro", "tx", "rx")
LINK_S = 20.0  # seconds for the kernels to notice a carrier, on a busy machine
SNMP_FILES = ("/proc/net/snmp", "/proc/net/netstat")


class LabError(RuntimeError):
    """A host could not be made, or a command in it failed or took too long."""


@dataclass(frozen=True)
class Wire:
    """The link between the hosts: `mtu` in bytes; `offloads`: the devices have them on."""

    name: str
    mtu: int
    offloads: bool
    bridge: bool

    @classmethod
    def parse(cls, name: str) -> Wire:
        """Parses veth-MTU[-nooff][-bridge]. Raises LabError for another name."""
        parts = name.split("-")
        rest = parts[2:]
        allowed = [[], ["nooff"], ["bridge"], ["nooff", "bridge"]]
        if parts[0] != "veth" or len(parts) < 2 or not parts[1].isdigit() or rest not in allowed:
            raise LabError(
                f"wire {name!r}: expected veth-MTU[-nooff][-bridge], such as veth-1500-nooff"
            )
        mtu = int(parts[1])
        if not 576 <= mtu <= 65535:
            raise LabError(f"wire {name!r}: the MTU must be 576 to 65535 bytes")
        return cls(name, mtu, "nooff" not in rest, "bridge" in rest)


def _ip(*args: object) -> str:
    """Runs ip(8) and returns its standard output. Raises LabError with its standard error."""
    command = ["ip", *map(str, args)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        raise LabError("ip(8) is not installed: apt-get install iproute2") from None
    if done.returncode:
        hint = "" if os.geteuid() == 0 else " (a lab needs root)"
        raise LabError(f"{' '.join(command)}: {done.stderr.strip()}{hint}")
    return done.stdout


def _end(process: "subprocess.Popen[Any]", number: int) -> None:
    """Sends a signal to the process group of a program."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@dataclass
class Host:
    """One host of a lab. `namespace` is its name for ip(8)."""

    namespace: str
    index: int
    wire: Wire
    interface: str = INTERFACE
    prefix: int = 24
    processes: "List[subprocess.Popen[Any]]" = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def address(self) -> str:
        """The address of the host's kernel."""
        return f"10.77.0.{self.index + 1}"

    @property
    def own_address(self) -> str:
        """An unused address of the same network, for a user-space stack."""
        return f"10.77.0.{self.index + 101}"

    @property
    def mac(self) -> str:
        return f"02:77:00:00:00:{self.index + 1:02x}"

    def command(self, args: Sequence[object]) -> List[str]:
        """The command line that runs `args` in this host. The program keeps the pid (exec)."""
        return ["ip", "netns", "exec", self.namespace, *map(str, args)]

    def popen(
        self,
        args: Sequence[object],
        env: Optional[Mapping[str, str]] = None,
        **options: Any,
    ) -> "subprocess.Popen[Any]":
        """Starts a program in this host, in a process group of its own.

        `env` is added to this process's environment. The lab ends the program at the
        latest when it closes.
        """
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("text", True)
        process = subprocess.Popen(
            self.command(args),
            env={**os.environ, **(env or {})},
            start_new_session=True,
            **options,
        )
        with self._lock:  # other threads also start programs
            self.processes = [*(p for p in self.processes if p.poll() is None), process]
        return process

    def run(
        self,
        args: Sequence[object],
        env: Optional[Mapping[str, str]] = None,
        timeout: float = 60,
        check: bool = True,
        input: Optional[str] = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a program to its end, for at most `timeout` seconds.

        Raises LabError with the program's output if it takes longer, or with `check` if
        its exit status is not 0.
        """
        process = self.popen(
            args,
            env,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            out, err = process.communicate(input, timeout)
        except subprocess.TimeoutExpired:
            _end(process, signal.SIGKILL)
            out, err = process.communicate()
            raise LabError(f"{self._says(args)} ran past {timeout} s\n{out}{err}") from None
        except BaseException:
            _end(process, signal.SIGKILL)
            process.communicate()
            raise
        if check and process.returncode:
            raise LabError(f"{self._says(args)} ended with {process.returncode}\n{out}{err}")
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def _says(self, args: Sequence[object]) -> str:
        return f"host {self.index} ({self.namespace}): {' '.join(map(str, args))}"

    def read(self, path: str) -> str:
        """Reads a file in this host's namespace (/proc/net, /sys/class/net)."""
        return self.run(["cat", path], timeout=10).stdout

    def write(self, path: str, text: str) -> None:
        """Writes a file in this host's namespace."""
        self.run(["tee", path], input=text, timeout=10)

    def counters(self) -> Dict[str, int]:
        """The kernel's network counters of this host: TcpOutSegs, TcpExtTCPTimeouts, ..."""
        lines = "".join(self.read(path) for path in SNMP_FILES).splitlines()
        counters: Dict[str, int] = {}
        for names, values in zip(lines[::2], lines[1::2]):
            group = names.split(":")[0]
            for name, value in zip(names.split()[1:], values.split()[1:]):
                counters[group + name] = int(value)
        return counters

    def counter(self, name: str) -> int:
        """One of `counters`. Raises LabError with the list if there is no such counter."""
        counters = self.counters()
        if name not in counters:
            raise LabError(f"host {self.index}: no counter {name!r}; it has {sorted(counters)}")
        return counters[name]

    def set_link(self, up: bool) -> None:
        """Sets the host's link up or down."""
        _ip("-n", self.namespace, "link", "set", self.interface, "up" if up else "down")

    def has_link(self) -> bool:
        """Whether the kernel has noticed the carrier. Until then it drops outgoing frames without
        an error."""
        return self.read(f"/sys/class/net/{self.interface}/operstate").strip() == "up"

    def has_xdp_program(self) -> bool:
        """Whether an XDP program is attached to the host's interface."""
        return "xdp" in self.run(["ip", "link", "show", self.interface]).stdout

    def end_processes(
        self, timeout: float = 2.0, some: "Optional[Sequence[subprocess.Popen[Any]]]" = None
    ) -> None:
        """Ends the programs of popen, or only some: SIGTERM, then after `timeout` seconds
        SIGKILL."""
        alive = [p for p in self.processes if p.poll() is None and (some is None or p in some)]
        for process in alive:
            _end(process, signal.SIGTERM)
        limit = time.monotonic() + timeout
        for process in alive:
            try:
                process.wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                _end(process, signal.SIGKILL)
                process.wait()
        with self._lock:
            self.processes = [p for p in self.processes if p.poll() is None]


class Lab:
    """Hosts on a wire, for the length of a `with` block.

    hosts: 2 to 64. wire: "veth-1500", "veth-9000", "veth-1500-nooff", or with the
    suffix "-bridge", which more than two hosts need.
    relay: faults between two hosts; `relay_counts` has its counts afterwards.
    threaded: threaded NAPI with GRO, so that the receiver's work does not run on
    the sender's core.
    """

    def __init__(
        self,
        hosts: int = 2,
        wire: str = "veth-1500",
        relay: Optional[RelaySpec] = None,
        threaded: bool = False,
    ) -> None:
        parsed = Wire.parse(wire)
        if not 2 <= hosts <= 64:
            raise LabError(f"{hosts} hosts: a lab has 2 to 64")
        if hosts > 2 and relay:
            raise LabError(f"{hosts} hosts: a relay joins two; drop the relay, or use 2 hosts")
        if hosts > 2 and not parsed.bridge:
            parsed = Wire.parse(wire + "-bridge")
        self.wire = parsed
        self.threaded = threaded
        self.relay_spec = relay
        self.relay: Optional[Relay] = None
        self.relay_counts: Dict[str, Any] = {}
        self.id = secrets.token_hex(3)
        self.hosts = [Host(f"{PREFIX}{self.id}-h{i}", i, parsed) for i in range(hosts)]
        self._middlebox = f"{PREFIX}{self.id}-mid" if relay or parsed.bridge else None
        self._lock: Optional[int] = None
        self._before: Dict[signal.Signals, Any] = {}

    def await_links(self) -> None:
        """Waits until every host's interface carries frames: the kernel notices a carrier late.
        Raises LabError after LINK_S."""
        limit = time.monotonic() + LINK_S
        for host in self.hosts:
            while not host.has_link():
                if time.monotonic() > limit:
                    raise LabError(f"host {host.index}: its link is not up after {LINK_S} s")
                time.sleep(0.005)

    @property
    def middlebox(self) -> str:
        """The namespace of the relay or the bridge between the hosts; port0 leads to host 0."""
        if not self._middlebox:
            raise LabError("this wire has no relay or bridge between the hosts")
        return self._middlebox

    # -- lifetime

    def __enter__(self) -> Lab:
        clean()
        self._lock = _lock(self.id)
        self._catch_signals()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def own_folder(self, folder: Path) -> None:
        """Lets clean() remove a folder, too. Its name begins with FOLDER_PREFIX."""
        assert self._lock is not None and folder.name.startswith(FOLDER_PREFIX)
        _describe(self._lock, folder=str(folder))

    def close(self) -> None:
        """Ends every program in the hosts and removes the hosts. May be called again."""
        if self._lock is None:
            return
        for host in self.hosts:
            host.end_processes()
        if self.relay:
            self.relay_counts = self.relay.stop()
            self.relay = None
        _remove(self.id)
        os.unlink(LOCKS / self.id)
        os.close(self._lock)
        self._lock = None
        self._restore_signals()

    def _catch_signals(self) -> None:
        """Makes SIGTERM, and the SIGHUP of a closed terminal, end the `with` block like Ctrl-C,
        unless they have a handler already."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                self._before[number] = signal.signal(number, _leave)

    def _restore_signals(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    # -- building

    def _build(self) -> None:
        names = [host.namespace for host in self.hosts] + (
            [self._middlebox] if self._middlebox else []
        )
        for name in names:
            _ip("netns", "add", name)
            _quiet_ipv6(name)
            _ip("-n", name, "link", "set", "lo", "up")
        if self.relay_spec:
            self._join_by_relay()
        elif self.wire.bridge:
            self._join_by_bridge()
        else:
            self._veth(self.hosts[0], self.hosts[1].namespace, INTERFACE)
        for host in self.hosts:
            self._configure(host)
        if self.relay_spec:
            self._start_relay(self.relay_spec)

    def _start_relay(self, spec: RelaySpec) -> None:
        assert self._middlebox
        self.relay_spec = spec
        self.relay = Relay(spec, self._middlebox, "port0", "port1")

    def impair(self, spec: RelaySpec) -> Dict[str, Any]:
        """Changes the faults from now on. Returns the relay's counts so far. Frames in the relay
        are lost."""
        assert self.relay, "this lab has no relay"
        counts = self.relay.stop()
        self.relay = None
        self._start_relay(spec)
        return counts

    def _veth(self, host: Host, peer_namespace: str, peer: str) -> None:
        mtu = self.wire.mtu
        near = ["link", "add", INTERFACE, "mtu", mtu, "netns", host.namespace]
        _ip(*near, "type", "veth", "peer", "name", peer, "mtu", mtu, "netns", peer_namespace)

    def _join_by_bridge(self) -> None:
        middlebox = self._middlebox
        assert middlebox
        _ip(
            "-n",
            middlebox,
            "link",
            "add",
            "bridge0",
            "mtu",
            self.wire.mtu,
            "type",
            "bridge",
            "stp_state",
            0,
            "mcast_snooping",
            0,
        )
        _ip("-n", middlebox, "link", "set", "bridge0", "up")
        for host in self.hosts:
            port = self._port(host)
            _ip("-n", middlebox, "link", "set", port, "master", "bridge0")

    def _join_by_relay(self) -> None:
        for host in self.hosts:
            self._port(host)

    def _port(self, host: Host) -> str:
        """Makes a veth pair from a host to the middlebox. Returns the name of its end there."""
        assert self._middlebox
        port = f"port{host.index}"
        self._veth(host, self._middlebox, port)
        if not self.wire.offloads:
            _switch_offloads(self._middlebox, port, OFFLOADS, False)
        _ip("-n", self._middlebox, "link", "set", port, "up")
        return port

    def _configure(self, host: Host) -> None:
        name = host.namespace
        _ip("-n", name, "link", "set", INTERFACE, "address", host.mac)
        if not self.wire.offloads:
            _switch_offloads(name, INTERFACE, OFFLOADS, False)
        _ip("-n", name, "address", "add", f"{host.address}/{host.prefix}", "dev", INTERFACE)
        _ip("-n", name, "link", "set", INTERFACE, "up")
        if self.threaded:
            # A veth has NAPI, and so a thread, only while it is up with GRO on.
            _switch_offloads(name, INTERFACE, ("gro",), True)
            host.write(f"/sys/class/net/{INTERFACE}/threaded", "1")
        # A namespace may not be allowed to change the default congestion control. A route can set
        # it for its connections.
        _ip(
            "-n",
            name,
            "route",
            "change",
            f"10.77.0.0/{host.prefix}",
            "dev",
            INTERFACE,
            "proto",
            "kernel",
            "scope",
            "link",
            "src",
            host.address,
            "congctl",
            "cubic",
        )


def _leave(number: int, frame: Optional[FrameType]) -> None:
    raise SystemExit(128 + number)


def _quiet_ipv6(namespace: str) -> None:
    """Switches IPv6 off: neighbour discovery would add frames to the test's own."""
    switches = [f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6" for which in ("all", "default")]
    command = ["ip", "netns", "exec", namespace, "tee", *switches]
    subprocess.run(command, input="1", text=True, capture_output=True, timeout=10)


def _switch_offloads(namespace: str, interface: str, which: Sequence[str], on: bool) -> None:
    settings = [word for name in which for word in (name, "on" if on else "off")]
    command = ["ip", "netns", "exec", namespace, "ethtool", "-K", interface, *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    if done.returncode:
        raise LabError(f"{' '.join(command)}: {done.stderr.strip()}")


# -- finding the labs of dead owners


def _open(path: Path, flags: int = 0) -> int:
    """Opens the file of a lab. Raises LabError without the right to do so."""
    try:
        LOCKS.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags | os.O_RDWR | os.O_CLOEXEC, 0o644)
    except PermissionError as error:
        raise LabError(f"{path}: {error.strerror} (a lab needs root)") from None


def _lock(lab_id: str) -> int:
    """Makes and locks the file that marks this lab as alive. Returns its descriptor."""
    path = LOCKS / lab_id
    while True:
        fd = _open(path, os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            break
        os.close(fd)  # another process's clean() has removed the file: make it again
    _describe(fd)
    return fd


def _describe(fd: int, **more: str) -> None:
    """Writes what a lab's file says of its owner."""
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps({"pid": os.getpid(), "started": time.time(), **more}).encode(), 0)


def _folder(fd: int) -> Optional[Path]:
    """The folder that a lab's file names, if it is one of own_folder."""
    with contextlib.suppress(ValueError, KeyError):
        folder = Path(json.loads(os.pread(fd, 65536, 0))["folder"])
        return folder if folder.name.startswith(FOLDER_PREFIX) else None
    return None


def _locked_by_nobody(path: Path) -> Optional[int]:
    """Locks a dead owner's file and returns its descriptor; None while the owner lives."""
    try:
        fd = _open(path)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return None
        raise
    return fd


def namespaces() -> List[str]:
    """The names of the namespaces of all labs on this machine."""
    folder = Path("/run/netns")
    found = folder.iterdir() if folder.is_dir() else iter(())
    return sorted(path.name for path in found if path.name.startswith(PREFIX))


def _remove(lab_id: str) -> List[str]:
    """Removes a lab's namespaces and kills the processes in them."""
    gone = [name for name in namespaces() if name.startswith(f"{PREFIX}{lab_id}-")]
    for name in gone:
        for pid in _ip("netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _ip("netns", "delete", name)
    return gone


def clean() -> List[str]:
    """Removes the labs of dead owners and their folders. Returns the names of the removed
    namespaces."""
    gone: List[str] = []
    for path in sorted(LOCKS.iterdir()) if LOCKS.is_dir() else []:
        fd = _locked_by_nobody(path)
        if fd is None:
            continue
        gone += _remove(path.name)
        folder = _folder(fd)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        path.unlink(missing_ok=True)
        os.close(fd)
    return gone


def labs() -> Dict[str, List[str]]:
    """Every lab on this machine, alive or dead, with its namespaces."""
    found: Dict[str, List[str]] = {}
    for name in namespaces():
        found.setdefault(name.split("-")[1], []).append(name)
    return found
