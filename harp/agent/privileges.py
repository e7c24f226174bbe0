# SPDX-License-Identifier: Apache-2.0
"""Gives up all privileges but those that the agent needs.

setpriv(1) of util-linux does the work: it starts the agent again as another user, with three
capabilities that programs it runs inherit. A container may forbid to raise the limit of locked
memory. The agent then keeps CAP_IPC_LOCK, too: the sockets' memory of xdp devices is locked.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import resource
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harp.agent.accounts import overflow_uid
from harp.capabilities import NUMBERS, effective

CAPABILITIES = ("net_raw", "net_admin", "bpf")
DESCRIPTORS = 8192
MEMORY_LOCK = "ipc_lock"
_TO_CHANGE_USER = ("setgid", "setuid", "setpcap")


class PrivilegeError(RuntimeError):
    """The agent cannot get, or give up, its privileges. The text has the remedy."""


def _effective() -> int:
    """The capabilities of this process, as bits."""
    return effective(Path("/proc/self/status").read_text())


def missing_capabilities() -> list[str]:
    """The needed capabilities that this process does not have."""
    return [name for name in CAPABILITIES if not _effective() >> NUMBERS[name] & 1]


def missing_to_change_user() -> list[str]:
    """The capabilities that root lacks to become the agent's user with CAPABILITIES only."""
    names = (*CAPABILITIES, *_TO_CHANGE_USER)
    return [name for name in names if not _effective() >> NUMBERS[name] & 1]


def has_needless_capabilities() -> bool:
    """Whether this process has capabilities that the agent does not need."""
    needed = (*CAPABILITIES, MEMORY_LOCK)
    return bool(_effective() & ~sum(1 << NUMBERS[name] for name in needed))


def may_lock_memory() -> bool:
    """Whether this process may lock as much memory as it wants, as xdp devices do."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return limit == resource.RLIM_INFINITY or bool(_effective() >> NUMBERS[MEMORY_LOCK] & 1)


@dataclass(frozen=True)
class User:
    """The user that the agent becomes. A user without a name has the group of its number."""

    uid: int
    gid: int
    name: str  # "": none

    @classmethod
    def find(cls, given: str) -> User:
        """The user with a name or number. Raises PrivilegeError for one that is missing, or that
        others use, too: they could kill the agent and replace its socket."""
        try:
            record = pwd.getpwuid(int(given)) if given.isdecimal() else pwd.getpwnam(given)
            found = cls(record.pw_uid, record.pw_gid, record.pw_name)
        except KeyError:
            if not given.isdecimal():
                raise PrivilegeError(
                    f"there is no user {given} for the agent to run as; make one (useradd --system "
                    f"--no-create-home --shell /usr/sbin/nologin {given}), or name another with "
                    "--user"
                ) from None
            found = cls(int(given), int(given), "")
        if found.uid == overflow_uid():
            raise PrivilegeError(
                f"--user {given}: other programs run as uid {found.uid}, too, and could end the "
                "agent or replace its socket; name a user that nothing else runs as"
            )
        return found

    def setpriv_options(self) -> list[str]:
        """Options of setpriv."""
        groups = "--init-groups" if self.name else "--clear-groups"
        return [f"--reuid={self.name or self.uid}", f"--regid={self.gid}", groups]


def prepare_folder(folder: Path, user: User) -> None:
    """Makes the folder of the socket, owned by the user that the agent becomes. Raises
    PrivilegeError for a folder of others, such as /run: it is not the agent's to give away."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o755, parents=True)
        os.chown(folder, user.uid, user.gid)
    owner = folder.stat().st_uid
    if owner != user.uid:
        raise PrivilegeError(
            f"{folder}: belongs to uid {owner}, but the agent runs as {user.name or 'a user'} (uid "
            f"{user.uid}); name a --socket in a folder that does not exist yet, or chown the "
            f"folder to {user.uid} if nothing else is in it"
        )


def _raise_memory_limit() -> bool:
    """Raises the limit of locked memory. false: that is forbidden here."""
    unlimited = resource.RLIM_INFINITY
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (unlimited, unlimited))
    except (ValueError, OSError):
        return False
    return True


def become(user: User, command: Sequence[str]) -> None:
    """Replaces this process by `command`, as `user` and with CAPABILITIES only. Returns only by
    PrivilegeError."""
    program = shutil.which("setpriv")
    if not program:
        raise PrivilegeError("setpriv is missing; install util-linux")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, most), most))
    names = CAPABILITIES if _raise_memory_limit() else (*CAPABILITIES, MEMORY_LOCK)
    kept = ",".join(["-all", *(f"+{name}" for name in names)])
    args = [program, *user.setpriv_options()]
    args += [f"--inh-caps={kept}", f"--ambient-caps={kept}", f"--bounding-set={kept}"]
    args += ["--no-new-privs", "--", *command]
    try:
        os.execv(program, args)
    except OSError as failed:
        raise PrivilegeError(f"{program}: {failed.strerror}") from None
