# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest: kills set-up before each of its changes and undoes it, then kills undo before
each of its own changes. The host must be as before each time.

Prints {"killed": number of kills of set-up, "undo_killed": number of kills of undo}. Exits with 1
and the difference if the host has changed. Processes are forked with everything loaded, because a
guest without KVM takes seconds to start Python.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "setup"))

import crashing  # noqa: E402

from harp.cli.main import main  # noqa: E402

MOST = 80  # changes; bounds the loops
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
        "routes": sorted(_lines("ip", "route", "show", "table", "all")),
        "pages": Path("/proc/sys/vm/nr_hugepages").read_text(),
        "modules": sorted(line.split()[0] for line in open("/proc/modules")),
        "files": files,
    }


def run(change: int, words: Sequence[str]) -> int:
    """Runs harp in a child process, killed before a change (a negative one: not killed). Returns
    its exit status, or minus the signal. Keeps its output for `complain`."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with open("/tmp/said", "w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    code = 1
    try:
        if change >= 0:
            crashing.die_before(change)
        main(list(words))
    except SystemExit as end:
        code = int(end.code or 0)
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def complain(what: str, before: dict[str, Any]) -> None:
    """Exits with 1 if the host is not as before."""
    now = state()
    if now == before:
        return
    for key, value in before.items():
        if now[key] != value:
            print(f"{what}: {key} was\n{value}\nand is\n{now[key]}")
    print(Path("/tmp/said").read_text())
    sys.exit(1)


def expect(code: int, allowed: Sequence[int], what: str) -> None:
    if code not in allowed:
        print(f"{what} ended with {code}\n{Path('/tmp/said').read_text()}")
        sys.exit(1)


def everywhere(words: Sequence[str], after: Callable[[int], None]) -> int:
    """Kills harp before its first change, then before its second, until it succeeds."""
    for change in range(MOST):
        code = run(change, words)
        expect(code, (0, -signal.SIGKILL), f"{words}, to be killed before change {change}")
        if code == 0:
            return change
        after(change)
    raise SystemExit(f"{words} made over {MOST} changes")


def killed(words: list[str]) -> None:
    before = state()

    def undo(change: int) -> None:
        expect(run(-1, ["setup", "undo"]), (0,), f"undo after a kill before change {change}")
        complain(f"undo after a kill before change {change}", before)

    changes = everywhere(words, undo)
    undone = everywhere(["setup", "undo"], lambda change: None)
    complain("undo that was killed again and again", before)
    print(json.dumps({"killed": changes, "undo_killed": undone}))


if __name__ == "__main__":
    killed(sys.argv[1:])
