# SPDX-License-Identifier: Apache-2.0
"""`harp doctor`: the agent of this node, as a job sees it, and its folder."""

from __future__ import annotations

import errno
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

from harp.agent import query
from harp.agent.request import VERSION
from harp.cli.findings import Finding, fault, note, ok

ABOUT = "agent"
XDP_KERNEL = (6, 4)  # a process maps the rings of a socket that another one has bound


def in_use() -> Optional[dict[str, Any]]:
    """What the agent says of itself if HARP would use it here, and it serves this user."""
    try:
        return _hello() if _is_wanted() else None
    except (OSError, ValueError):
        return None


def _is_wanted() -> bool:
    """Not if HARP_AGENT is empty, or if it is unset and no agent has been here."""
    return os.environ.get("HARP_AGENT", str(query.SOCKET)) != "" and (
        "HARP_AGENT" in os.environ or query.SOCKET.exists()
    )


def _hello() -> dict[str, Any]:
    """Raises OSError, or ValueError for an answer that is none."""
    answer = query.ask(query.socket_path(), "hello")
    if not isinstance(answer, dict):
        raise ValueError("no JSON object")
    return answer


def check() -> Iterator[Finding]:
    """The agent, if HARP would use one here."""
    if os.environ.get("HARP_AGENT") == "":
        yield ok(ABOUT, "HARP_AGENT is empty: HARP uses its own privileges")
    if not _is_wanted():
        return
    path = query.socket_path()
    try:
        hello = _hello()
    except OSError as failed:
        yield _no_answer(path, failed)
        return
    except ValueError as wrong:
        yield fault(ABOUT, f"{path}: answers something else ({wrong}); is it harp agent's socket?")
        return
    yield from _about_version(path, int(hello.get("version", 1)))
    yield from _about_kernel(hello)
    yield from _about_grants(path)


def _no_answer(path: Path, failed: OSError) -> Finding:
    if failed.errno in (errno.EACCES, errno.EUSERS):
        return fault(ABOUT, failed.strerror or str(failed))
    if failed.errno in (errno.ECONNREFUSED, errno.ENOENT) and "HARP_AGENT" not in os.environ:
        return note(ABOUT, f"{path} is left from an agent that has ended, so HARP uses its own "
                    f"privileges{_left_behind(path)}; start harp agent, or remove the "
                    "file")  # fmt: skip
    return fault(
        ABOUT,
        f"no answer at {path}: {failed.strerror or failed}; start harp agent on the node and mount "
        "the folder of its socket, or set HARP_AGENT= (empty) to use HARP's own privileges",
    )


def _left_behind(path: Path) -> str:
    try:
        count = len(json.loads(path.with_suffix(".grants").read_text()))
    except (OSError, ValueError, TypeError):
        return ""
    return f"; its table has {count} grants" if count else ""


def _about_version(path: Path, version: int) -> Iterator[Finding]:
    if version < VERSION:
        yield note(ABOUT, f"{path} speaks protocol {version}, and this release {VERSION}; install "
                   "this release on the node, too")  # fmt: skip
    else:
        yield ok(ABOUT, f"{path} serves this user, protocol {version}")


def _about_kernel(hello: dict[str, Any]) -> Iterator[Finding]:
    numbers = re.match(r"(\d+)\.(\d+)", str(hello.get("kernel", "")))
    if numbers and tuple(map(int, numbers.groups())) < XDP_KERNEL:
        yield note(ABOUT, f"the node's Linux {numbers[0]} is older than 6.4, which xdp devices "
                   "of an agent need; use packet devices")  # fmt: skip
    if hello.get("may_lock_memory") is False:
        yield note(ABOUT, "its limit of locked memory is too low for xdp devices; raise it "
                   "(LimitMEMLOCK=infinity), or give it CAP_IPC_LOCK")  # fmt: skip


def _about_grants(path: Path) -> Iterator[Finding]:
    state = query.ask(path, "status")
    first, last, _ = state["ports"]
    held: Counter[str] = Counter()
    for grant in state["grants"]:
        low, high = grant["ports"]
        held[grant["interface"]] += high - low + 1 if low else 0
    ports = "".join(f", {count} of {last - first + 1} local ports of {interface}"
                    for interface, count in sorted(held.items()) if count)  # fmt: skip
    yield ok(ABOUT, f"{state['granted']} devices are in use{ports}")


def check_device(about: str, device: str, hello: dict[str, Any]) -> Iterator[Finding]:
    """Whether the agent opens a packet or xdp device for this user. hello: in_use()."""
    name = device.partition(":")[2].partition(",")[0]
    devices = hello.get("devices") or []
    if devices and name not in devices:
        yield fault(
            about,
            f"the agent does not open {device}: it serves only {', '.join(map(str, devices))}; "
            f"correct device, or start harp agent with --device {name}",
        )
    else:
        yield ok(about, f"the agent of this node opens {device}")
