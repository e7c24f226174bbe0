# SPDX-License-Identifier: Apache-2.0
"""The users and groups that the agent serves.

All names are looked up at the agent's start: a name service may take seconds, and the agent's loop
waits for nobody. Afterwards the agent compares the numbers that the kernel tells of a client.
"""

from __future__ import annotations

import grp
import pwd
from collections.abc import Collection, Sequence
from pathlib import Path

OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")


class UnknownName(ValueError):
    """A user or a group that this host does not have. The text has the remedy."""


def overflow_uid() -> int:
    """What the kernel shows for a user that has no number in the reader's user namespace
    (user_namespaces(7)). It is also the number of nobody on most hosts."""
    return int(OVERFLOW_UID.read_text())


def _unknown(kind: str, option: str, name: str) -> UnknownName:
    return UnknownName(f"{option} {name}: there is no {kind} {name} here; correct it, or give its "
                       "number")  # fmt: skip


def find_user(name: str, option: str) -> int:
    """The number of a user, given by name or number. Raises UnknownName. option: for its text."""
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise _unknown("user", option, name) from None


class Accounts:
    """allow: users (name or number) and groups (@name or @number). Raises UnknownName."""

    def __init__(self, allow: Sequence[str] = ()):
        self._user_names = {one.pw_uid: one.pw_name for one in reversed(pwd.getpwall())}
        self._group_names = {one.gr_gid: one.gr_name for one in reversed(grp.getgrall())}
        self._unmapped = overflow_uid()
        self._users: set[int] = set()
        self._groups: set[int] = set()
        self._members: set[int] = set()  # of the groups
        for word in allow:
            if word.startswith("@"):
                self._add_group(word[1:])
            else:
                self._users.add(find_user(word, "--allow"))

    def _add_group(self, name: str) -> None:
        try:
            record = grp.getgrgid(int(name)) if name.isdecimal() else grp.getgrnam(name)
        except KeyError:
            if not name.isdecimal():
                raise _unknown("group", "--allow", f"@{name}") from None
            self._groups.add(int(name))
            return
        self._groups.add(record.gr_gid)
        for member in record.gr_mem:
            try:
                self._members.add(pwd.getpwnam(member).pw_uid)
            except KeyError:
                continue  # a user that has been removed

    def include(self, uid: int, gids: Collection[int]) -> bool:
        """Whether a process of this user, with these groups, is served. Root always is. A user
        without a number here is nobody that a group or its members could mean."""
        if uid == 0 or uid in self._users:
            return True
        if self.is_unmapped(uid):
            return False
        return uid in self._members or not self._groups.isdisjoint(gids)

    def is_unmapped(self, uid: int) -> bool:
        return uid == self._unmapped

    def user(self, uid: int) -> str:
        """The name of a user, or its number."""
        return self._user_names.get(uid, str(uid))

    def group(self, gid: int) -> str:
        return self._group_names.get(gid, str(gid))
