# SPDX-License-Identifier: Apache-2.0
"""What the agent has given to which process.

A grant belongs to one open port of a process. On the kernel's address it has a block of local TCP
ports, because the socket's filter lets the job see all frames of these ports. On an address of its
own it has the address.

The table is kept in a file. An agent that restarts reads it and keeps the grants of processes that
still live, because their sockets live, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional


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
    """`first` and `last`: the block of ports; 0, 0 on an address of HARP's own."""

    interface: str
    address: str
    first: int
    last: int
    owner: Owner

    def is_for(self, interface: str, ports: tuple[int, int]) -> bool:
        return self.interface == interface and (self.first, self.last) == ports


def _from_json(record: dict[str, Any]) -> Grant:
    owner = Owner(**{name: int(record["owner"][name]) for name in ("pid", "started", "uid")})
    return Grant(
        str(record["interface"]),
        str(record["address"]),
        int(record["first"]),
        int(record["last"]),
        owner,
    )


class Grants:
    """The table. file: where it is kept; None: nowhere."""

    def __init__(self, file: Optional[Path] = None):
        self.file = file
        self._held: list[Grant] = []
        if file and file.exists():
            self._held = [grant for grant in _read(file) if grant.owner.lives()]

    def __iter__(self) -> Iterator[Grant]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def used_by(self, uid: int) -> int:
        """The number of grants of a user."""
        return sum(grant.owner.uid == uid for grant in self._held)

    def find(self, owner: Owner, interface: str, ports: tuple[int, int]) -> Optional[Grant]:
        """The grant of a process with these ports."""
        for grant in self._held:
            if grant.owner == owner and grant.is_for(interface, ports):
                return grant
        return None

    def is_free(self, interface: str, first: int, last: int) -> bool:
        """Whether nobody has a port of the range on an interface."""
        return not any(
            grant.interface == interface and grant.first <= last and first <= grant.last
            for grant in self._held
            if grant.first
        )

    def holder(self, address: str) -> Optional[Grant]:
        """The grant of an address of HARP's own. Processes may share it if their ports differ."""
        for grant in self._held:
            if grant.address == address:
                return grant
        return None

    def add(self, grant: Grant) -> None:
        self._held.append(grant)
        self._save()

    def drop(self, gone: list[Grant]) -> None:
        """Takes grants back."""
        if gone:
            self._held = [grant for grant in self._held if not any(grant is g for g in gone)]
            self._save()

    def drop_dead(self) -> int:
        """Takes back the grants of processes that have ended. Returns their number."""
        dead = [grant for grant in self._held if not grant.owner.lives()]
        self.drop(dead)
        return len(dead)

    def _save(self) -> None:
        if self.file:
            fresh = self.file.with_suffix(".new")
            fresh.write_text(json.dumps([asdict(grant) for grant in self._held]))
            os.replace(fresh, self.file)


def _read(file: Path) -> list[Grant]:
    """The grants in a file. Raises ValueError with the remedy if it cannot be read."""
    try:
        return [_from_json(record) for record in json.loads(file.read_text())]
    except (OSError, ValueError, KeyError, TypeError) as wrong:
        raise ValueError(
            f"{file}: not a table of grants ({wrong!r}); end the jobs with HARP on this host and "
            "remove the file"
        ) from None
