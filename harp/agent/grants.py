# SPDX-License-Identifier: Apache-2.0
"""What the agent has given to which process.

A grant belongs to one device that a process has opened. On the kernel's address it has a block of
local TCP ports, because the socket's filter lets the job see all frames of these ports. On an
address of its own it has the address.

A grant lasts as long as a socket that the agent has passed for it, whoever holds that socket now: a
process could give it to another one and end. The kernel lists all packet sockets. A grant of an xdp
device also lasts as long as its program is attached: the program gives frames to AF_XDP sockets,
whoever has them. A grant that knows neither is one whose opening was interrupted; it lasts as long
as its process.

The table is kept in a file. An agent that restarts reads it and keeps the grants that last. Those
of an earlier boot do not last: the kernel's numbers have begun again.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Optional

from harp.agent import xdp_programs
from harp.setup import sysfs

PACKET_SOCKETS = Path("/proc/net/packet")


class Exhausted(OSError):
    """No block of ports, or no address, is free."""


def start_time(pid: int) -> Optional[int]:
    """When a process started, in the kernel's ticks; None: it does not live, or is a zombie. Field
    22 of proc_pid_stat(5)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return int(fields[19]) if fields[0] not in "ZX" else None


def packet_sockets() -> set[int]:
    """The inodes of all packet sockets in this network namespace."""
    lines = PACKET_SOCKETS.read_text().splitlines()[1:]
    return {int(line.split()[8]) for line in lines}


@dataclass(frozen=True)
class Present:
    """What the kernel has now, in this network namespace."""

    sockets: Collection[int] = ()  # inodes of packet sockets
    programs: Collection[int] = ()  # numbers of attached XDP programs

    @classmethod
    def read(cls) -> Present:
        """Raises OSError."""
        return cls(packet_sockets(), xdp_programs.attached())


@dataclass(frozen=True)
class Passed:
    """What a client got: the inodes of sockets, the number of an XDP program (0: none), and the
    interface's address in the kernel ("": none)."""

    sockets: tuple[int, ...] = ()
    program: int = 0
    kernel_address: str = ""


@dataclass(frozen=True)
class Owner:
    """A process. `started` tells it from a later process with the same number."""

    pid: int
    started: int
    uid: int

    def lives(self) -> bool:
        return start_time(self.pid) == self.started


@dataclass(frozen=True)
class Grant:
    """`interface`: its name when the job opened it, and `index` its number (0: unknown). An
    interface keeps its number under another name, and a new one of its name has another number.
    `first` and `last`: the block of ports; 0, 0 on an address of HARP's own. `sockets` and
    `program`: as in Passed; none: unknown. `kernel_address`: also as in Passed. A job's listeners
    stay at this address if the interface gets others; "": unknown."""

    interface: str
    address: str
    first: int
    last: int
    owner: Owner
    sockets: tuple[int, ...] = ()
    program: int = 0
    index: int = 0
    kernel_address: str = ""

    def present_name(self) -> Optional[str]:
        """The interface's name now; None: the interface is gone."""
        try:
            return socket.if_indextoname(self.index) if self.index else self.interface
        except OSError:
            return None

    def is_for(self, interface: str, ports: tuple[int, int]) -> bool:
        """Whether a job means this grant by the interface's first name and these ports."""
        return self.interface == interface and (self.first, self.last) == ports

    def port_count(self) -> int:
        return self.last - self.first + 1 if self.first else 0

    def lasts(self, present: Present) -> bool:
        """Whether somebody still has a part of it."""
        if not self.sockets and not self.program:
            return self.owner.lives()
        if self.program in present.programs:
            return True
        return any(inode in present.sockets for inode in self.sockets)


def _from_json(record: dict[str, Any]) -> Grant:
    owner = Owner(**{name: int(record["owner"][name]) for name in ("pid", "started", "uid")})
    return Grant(
        str(record["interface"]),
        str(record["address"]),
        int(record["first"]),
        int(record["last"]),
        owner,
        tuple(int(inode) for inode in record.get("sockets", ())),
        int(record.get("program", 0)),
        int(record.get("index", 0)),
        str(record.get("kernel_address", "")),
    )


class Grants:
    """The table. file: where it is kept; None: nowhere."""

    def __init__(self, file: Optional[Path] = None):
        self.file = file
        self._held: list[Grant] = []
        if file and file.exists():
            self._held = _read(file)
            self.drop_gone()

    def __iter__(self) -> Iterator[Grant]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def used_by(self, uid: int) -> int:
        """The number of grants of a user."""
        return sum(grant.owner.uid == uid for grant in self._held)

    def ports_used_by(self, uid: int, interface: str) -> int:
        """The number of local ports that a user has on an interface, by its present name."""
        mine = (g for g in self._held if g.owner.uid == uid and g.present_name() == interface)
        return sum(grant.port_count() for grant in mine)

    def find(self, owner: Owner, interface: str, ports: tuple[int, int]) -> Optional[Grant]:
        """The grant of a process with these ports. A job knows the interface's first name only. A
        later interface of this name does not get the grant of one that is gone."""
        for grant in self._held:
            if grant.owner == owner and grant.is_for(interface, ports) and grant.present_name():
                return grant
        return None

    def is_free(self, interface: str, first: int, last: int) -> bool:
        """Whether nobody has a port of the range on an interface, by its present name. Sockets of
        an interface that is gone see no frame of a later one."""
        return not any(
            grant.present_name() == interface and grant.first <= last and first <= grant.last
            for grant in self._held
            if grant.first
        )

    def holder(self, address: str) -> Optional[Grant]:
        """The grant of an address of HARP's own."""
        for grant in self._held:
            if grant.address == address:
                return grant
        return None

    def with_program(self, interface: str, besides: Owner) -> Optional[Grant]:
        """The grant of another living process whose XDP program is attached to an interface, by its
        present name. The kernel detaches the program of an ended process, or of a closed port, a
        moment later. Raises OSError."""
        attached = xdp_programs.attached()
        for grant in self._held:
            is_other = grant.owner != besides and grant.owner.lives()
            if is_other and grant.program in attached and grant.present_name() == interface:
                return grant
        return None

    def add(self, grant: Grant) -> None:
        """Raises OSError, without the grant, if the file cannot be written."""
        self._held.append(grant)
        try:
            self._save()
        except OSError:
            self._held.pop()
            raise

    def drop(self, gone: Grant) -> None:
        """Takes a grant back."""
        self._held = [grant for grant in self._held if grant is not gone]
        self._save()

    def confirm(self, grant: Grant, passed: Passed) -> Grant:
        """Notes what a client got for a grant. Returns the grant with it."""
        confirmed = replace(grant, **vars(passed))
        self._held = [confirmed if held is grant else held for held in self._held]
        self._save()
        return confirmed

    def drop_gone(self) -> int:
        """Takes back the grants that do not last. Returns their number."""
        present = Present.read()
        lasting = [grant for grant in self._held if grant.lasts(present)]
        count = len(self._held) - len(lasting)
        if count:
            self._held = lasting
            self._save()
        return count

    def _save(self) -> None:
        if self.file:
            fresh = self.file.with_suffix(".new")
            boot = sysfs.boot()
            records = [{**asdict(grant), "boot": boot} for grant in self._held]
            fresh.write_text(json.dumps(records))
            os.replace(fresh, self.file)


def _is_of_this_boot(record: dict[str, Any], boot: str) -> bool:
    """Also if the record does not tell, or if this boot's id cannot be read ("")."""
    return not boot or record.get("boot", "") in ("", boot)


def _read(file: Path) -> list[Grant]:
    """The grants in a file. Raises ValueError with the remedy if it cannot be read."""
    try:
        records, boot = json.loads(file.read_text()), sysfs.boot()
        return [_from_json(record) for record in records if _is_of_this_boot(record, boot)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as wrong:
        raise ValueError(
            f"{file}: not a table of grants ({wrong!r}); end the jobs with HARP on this host and "
            "remove the file"
        ) from None
