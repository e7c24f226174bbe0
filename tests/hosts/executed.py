# SPDX-License-Identifier: Apache-2.0
"""The instructions that a program executes, counted one by one under callgrind, and its system
calls.

callgrind writes a file of counts before and after each call of a function (`watched`). The file
names instructions by object and address. Their bytes in the object show which ones are locked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from elftools.elf.elffile import ELFFile

from tools.hosts.ranks import Site

# Intel SDM, volume 2A, 2.1.1: the legacy prefixes.
LOCK = 0xF0
PREFIXES = {LOCK, 0xF2, 0xF3, 0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65, 0x66, 0x67}


def is_locked(code: bytes) -> bool:
    """Whether an x86-64 instruction locks the bus: it has a LOCK prefix, or is an XCHG with memory
    or an MFENCE."""
    at = 0
    while code[at] in PREFIXES:
        if code[at] == LOCK:
            return True
        at += 1
    at += code[at] & 0xF0 == 0x40  # REX
    xchg = code[at] in (0x86, 0x87) and code[at + 1] < 0xC0
    return xchg or code[at : at + 3] == b"\x0f\xae\xf0"


def watched(site: Site, folder: Path, function: str) -> Site:
    """The site, with its program under callgrind. The files of counts go to the folder."""
    folder.mkdir()
    args = (
        *("valgrind", "--tool=callgrind", "--dump-instr=yes", "--fair-sched=yes"),
        *(f"--dump-before={function}", f"--dump-after={function}"),
        *(f"--callgrind-out-file={folder}/out", "--trace-syscalls=yes", f"--log-file={folder}/log"),
    )
    return Site(site.folder, [*site.prefix, *args], site.environment, site.address)


class _Object:
    """The code of a program or library."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            segments = ELFFile(file).iter_segments("PT_LOAD")
            self.parts = [(part["p_vaddr"], part.data()) for part in segments]

    def at(self, address: int) -> bytes:
        for start, data in self.parts:
            if start <= address < start + len(data):
                return bytes(data[address - start : address - start + 15])
        raise KeyError(hex(address))


@dataclass
class Run:
    """What was executed in one call of the function."""

    locked: Counter[tuple[str, int]] = field(default_factory=Counter)  # by function and address
    entries: dict[str, tuple[int, int]] = field(
        default_factory=dict
    )  # lowest address and its count

    def calls(self, function: str) -> int:
        return self.entries.get(function, (0, 0))[1]

    def add(self, function: str, address: int, count: int, locked: bool) -> None:
        if locked:
            self.locked[function, address] += count
        if address <= self.entries.get(function, (address, 0))[0]:
            self.entries[function] = (address, count)


class Executed:
    """The runs of a watched function, in their order, and the system calls of the whole program."""

    def __init__(self, folder: Path) -> None:
        self._objects: dict[str, _Object] = {}
        self._locked: dict[tuple[str, int], bool] = {}
        self._names: dict[tuple[str, str], str] = {}  # each file may use names of earlier ones
        count = len(list(folder.glob("out.*")))
        files = [*(f"out.{number}" for number in range(1, count + 1)), "out"]
        texts = [(folder / name).read_text() for name in files]
        self.all = [self._read(text) for text in texts]
        self.runs = [run for run, text in zip(self.all, texts) if "Trigger: --dump-after" in text]
        log = (folder / "log").read_text()
        self.system_calls = Counter(re.findall(r"\(\d+\) (?:sys|__NR)_(\w+)", log))

    def _is_locked(self, path: str, address: int) -> bool:
        key = path, address
        if key not in self._locked:
            if path not in self._objects:
                self._objects[path] = _Object(Path(path))
            self._locked[key] = is_locked(self._objects[path].at(address))
        return self._locked[key]

    def _read(self, text: str) -> Run:
        run = Run()
        for path, function, address, count in self._lines(text):
            if Path(path).is_file():
                run.add(function, address, count, self._is_locked(path, address))
        return run

    def _lines(self, text: str) -> Iterator[tuple[str, str, int, int]]:
        """Object, function, address and count of each instruction (Callgrind Format
        Specification)."""
        now = {"ob": "", "fn": ""}
        address, of_call = 0, False
        for line in text.splitlines():
            named = re.match(r"(c?)(ob|fn)=(\(\d+\))(?: (.*))?$", line)
            if named:
                called, kind, number, name = named.groups()
                if name:
                    self._names[kind, number] = name.split("'")[0]
                if not called:
                    now[kind] = self._names[kind, number]
                continue
            cost = re.match(r"(0x[0-9a-f]+|[+-]\d+|\*) \S+ (\d+)$", line)
            if cost:
                where = cost[1]
                address = (
                    int(where, 16) if where[0] == "0" else address + int(where.strip("*") or 0)
                )
                if not of_call:  # the line behind calls= has the costs of the called function
                    yield now["ob"], now["fn"], address, int(cost[2])
                of_call = False
            of_call |= line.startswith("calls=")
