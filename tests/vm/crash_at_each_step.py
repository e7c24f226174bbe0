# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest: kills set-up before each of its changes and undoes it, then kills undo before
each of its own changes. The host must be as before each time.

Prints {"killed": number of kills of set-up, "undo_killed": number of kills of undo}. Exits with 1
and the difference if the host has changed.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "setup"))

from crashing import run  # noqa: E402

from harp.setup import nic_settings  # noqa: E402

MOST = 100  # changes; bounds the loops
SETTINGS = ("queues", "rx-ring", "lro", "rx-gro-hw")
TREES = ("/usr/local/tfabric", "/etc/default/grub.d")


def _lines(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # The kernel adds fe80:: addresses itself, at a time of its own.
    return [line for line in done.stdout.splitlines() if not re.search("fe80:|ff00:", line)]


def state() -> dict[str, Any]:
    """All state that set-up may change, except empty folders. Sorted, because a returned interface
    gets a new index, which does not matter."""
    devices = {}
    for folder in sorted(Path("/sys/bus/pci/devices").iterdir()):
        driver = folder / "driver"
        override = (folder / "driver_override").read_text().strip()
        devices[folder.name] = [driver.resolve().name if driver.exists() else "", override]
    inet = re.compile(r"^\d+: (\S+) +(inet.*?) (?:tentative )?\\")
    addresses = [one.groups() for one in map(inet.match, _lines("ip", "-o", "addr")) if one]
    links = re.compile(r"^\d+: (\S+): .*?(mtu \d+).* (link/ether \S+)")
    files = {
        str(path): path.read_text()
        for tree in TREES
        for path in sorted(Path(tree).rglob("*"))
        if path.is_file()
    }
    return {
        "devices": devices,
        "addresses": sorted(addresses),
        "links": sorted(
            one.groups() for one in map(links.match, _lines("ip", "-o", "link")) if one
        ),
        "settings": {
            path.name: [nic_settings.value(path.name, key) for key in SETTINGS]
            for path in sorted(Path("/sys/class/net").iterdir())
        },
        "routes": sorted(_lines("ip", "route", "show", "table", "all")),
        "pages": Path("/proc/sys/vm/nr_hugepages").read_text(),
        "modules": sorted(line.split()[0] for line in open("/proc/modules")),
        "files": files,
    }


def complain(what: str, said: str, before: dict[str, Any]) -> None:
    """Exits with 1 if the host is not as before. said: the output of harp."""
    now = state()
    if now == before:
        return
    for key, value in before.items():
        if now[key] != value:
            print(f"{what}: {key} was\n{value}\nand is\n{now[key]}")
    print(said)
    sys.exit(1)


def expect(change: int, args: Sequence[str], allowed: Sequence[int], what: str) -> tuple[int, str]:
    """Runs harp, and exits with 1 if its status is not one of these. Returns status and output."""
    code, said = run(change, args)
    if code not in allowed:
        print(f"{what} ended with {code}\n{said}")
        sys.exit(1)
    return code, said


def everywhere(args: Sequence[str], after: Callable[[int], None]) -> tuple[int, str]:
    """Kills harp before its first change, then before its second, until it succeeds. Returns the
    number of kills, and the output of the last run."""
    for change in range(MOST):
        what = f"{args}, to be killed before change {change}"
        code, said = expect(change, args, (0, -signal.SIGKILL), what)
        if code == 0:
            return change, said
        after(change)
    raise SystemExit(f"{args} made over {MOST} changes")


def killed(args: list[str]) -> None:
    before = state()

    def undo(change: int) -> None:
        what = f"undo after a kill before change {change}"
        _, said = expect(-1, ["setup", "undo"], (0,), what)
        complain(what, said, before)

    changes, _ = everywhere(args, undo)
    undone, said = everywhere(["setup", "undo"], lambda change: None)
    complain("undo that was killed again and again", said, before)
    print(json.dumps({"killed": changes, "undo_killed": undone}))


if __name__ == "__main__":
    killed(sys.argv[1:])
