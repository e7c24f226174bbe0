# SPDX-License-Identifier: Apache-2.0
"""The cache lines that instances write while they poll, as valgrind's lackey sees them.

lackey prints every instruction and every access to memory of model-links, which has no threads. A
store to world.phases (links.h) says which instance polls from now on.
"""

from __future__ import annotations

import bisect
import re
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Optional

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from links_model import PROGRAM

LINE = 64  # bytes of a cache line
STACK = 1 << 20  # bytes: each worker has a stack of its own
RUN_S = 300

# The host's port and its memory, and the wrappers of malloc and free that count blocks.
OF_THE_MODEL = re.compile(
    r"world_phase|receive|transmit|place|hand_back|poll_one|counted|__wrap_\w+"
)

Writes = dict[int, set[str]]  # by line: the functions that write to it


class _Symbols:
    """The functions of model-links and its two processes, at their addresses in the process."""

    def __init__(self) -> None:
        self._found: list[tuple[int, int, str]] = []

    def add(self, path: Path, known: str, address: int) -> None:
        with path.open("rb") as file:
            table = ELFFile(file).get_section_by_name(".symtab")
            assert isinstance(table, SymbolTableSection)
            symbols = [(s["st_value"], s["st_size"], s.name) for s in table.iter_symbols()]
        base = address - next(at for at, _, name in symbols if name == known)
        self._found += [(base + at, size, name) for at, size, name in symbols if size]
        self._found.sort()

    def at(self, address: int) -> Optional[str]:
        place = bisect.bisect_right(self._found, (address, 1 << 62, "")) - 1
        start, size, name = self._found[place]
        return name if place >= 0 and address < start + size else None


class Watched:
    """What the instances have written, by side and instance; and the lines that links share."""

    def __init__(self, program: str) -> None:
        self.symbols = _Symbols()
        self.writes: dict[int, Writes] = defaultdict(lambda: defaultdict(set))
        self.requests: list[range] = []
        self._phases = range(0)
        self._stack = 0
        self.complete = False
        command = ("valgrind", "--tool=lackey", "--trace-mem=yes", "--log-fd=2", str(PROGRAM), "-a")
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as run:
            timer = threading.Timer(RUN_S, run.kill)
            timer.start()
            assert run.stdin and run.stderr
            reader = threading.Thread(target=self._listen, args=(run,))
            reader.start()
            run.stdin.write(program.encode() + b"\n")
            run.stdin.close()
            self._read(run.stderr)
            reader.join()
            timer.cancel()

    def _listen(self, run: subprocess.Popen[bytes]) -> None:
        assert run.stdout
        for line in run.stdout:
            name, *fields = line.decode().split()
            if name == "phases":
                self._phases = range(int(fields[0], 16), int(fields[0], 16) + int(fields[1]))
            elif name == "stack":
                self._stack = int(fields[0], 16)
            elif name == "requests":
                start = int(fields[0], 16)
                self.requests.append(range(start // LINE, (start + int(fields[1])) // LINE))
            elif fields and fields[-1].startswith("0x"):
                self.symbols.add(PROGRAM.parent / name, fields[0], int(fields[1], 16))
            elif name == "watched":
                self.complete = True
                run.kill()  # the end of the program does not matter

    def _stores(self, file: IO[bytes]) -> Iterator[tuple[str, int, int]]:
        """The function, address and size of each store. A store of the C library belongs to the
        function that called it."""
        names: dict[bytes, Optional[str]] = {}
        function: Optional[str] = None
        for line in file:
            kind = line[:2]
            if kind == b"I ":
                if line not in names:
                    names[line] = self._phases and self.symbols.at(_address(line)) or None
                    if not self._phases:
                        names.clear()
                        continue
                function = names[line] or function
            elif kind in (b" S", b" M") and function:
                yield function, _address(line), int(line[line.index(b",") + 1 :])

    def _read(self, file: IO[bytes]) -> None:
        phase = 0
        for function, address, size in self._stores(file):
            if address in self._phases:
                phase = address - self._phases.start if function == "world_phase" else phase
            elif phase and not OF_THE_MODEL.fullmatch(function):
                if abs(address - self._stack) > STACK:
                    for line in range(address // LINE, (address + size - 1) // LINE + 1):
                        self.writes[phase][line].add(function)

    def shared(self, one: int, other: int) -> Writes:
        """The lines that both instances write to, without those of requests."""
        both = self.writes[one].keys() & self.writes[other].keys()
        return {
            line: self.writes[one][line] | self.writes[other][line]
            for line in sorted(both)
            if not any(line in requests for requests in self.requests)
        }


def _address(line: bytes) -> int:
    return int(line[3 : line.index(b",")], 16)
