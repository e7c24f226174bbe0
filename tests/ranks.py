# SPDX-License-Identifier: Apache-2.0
"""Ranks for tests of faults: tests/hosts/rank.c, led call by call, and those of harp.testing."""

from __future__ import annotations

import os
import queue
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import pytest

from harp import paths
from tools.hosts.ranks import (
    START_S,
    Perf,
    Program,
    Site,
    packet_site,
    remove_wire,
    wait_until,
    wire_path,
    wire_site,
)

__all__ = [
    "API", "REMOTE_ERROR", "START_S", "SYSTEM_ERROR", "Failed", "Link", "Perf", "Rank", "Site",
    "connect", "packet_site", "preloads", "remove_wire", "wait_until", "wire_path", "wire_site",
]  # fmt: skip

# Of tests whose ranks have a preloaded library.
preloads = pytest.mark.skipif(
    "SANITIZER_RUNTIME" in os.environ, reason="a sanitizer replaces the preloaded functions"
)

SYSTEM_ERROR, REMOTE_ERROR = 2, 6  # ncclResult_t
API = 12


class Failed(Exception):
    """A call of the plugin failed: `code` is NCCL's, `ms` how long the command took."""

    def __init__(self, call: str, code: int, ms: float) -> None:
        super().__init__(f"{call}: ncclResult {code} after {ms} ms")
        self.call, self.code, self.ms = call, code, ms


class Rank(Program):
    """tests/hosts/rank.c. Times in milliseconds; an answer that is late, or that
    tells of wrong bytes, is an AssertionError."""

    def __init__(self, site: Site, api: int = API, plugin: Optional[Path] = None) -> None:
        self.api = api
        program = paths.build_dir() / "tests" / "hosts" / "rank"
        assert program.exists(), f"{program} is not built: meson compile -C {paths.build_dir()}"
        super().__init__(site, [str(program), str(plugin or paths.nccl_plugin_path()), str(api)])
        self._answers: "queue.Queue[Optional[str]]" = queue.Queue()
        self._readers.append(threading.Thread(target=self._collect, daemon=True))
        self._readers[1].start()

    def _collect(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            # In their order: what was logged before an answer is known when that is taken.
            if line.startswith("NCCL "):
                self.said.append((time.monotonic(), line.rstrip("\n")))
            else:
                self._answers.put(line.rstrip("\n"))
        self._answers.put(None)

    def start(self, *args: object) -> None:
        """Sends a command; `finish` takes its answer. Several may be sent ahead."""
        assert self.process.stdin
        self.process.stdin.write(" ".join(map(str, args)) + "\n")
        self.process.stdin.flush()

    def finish(self, timeout: float = START_S) -> list[str]:
        """The answer after "ok"; timeout: seconds. Raises Failed."""
        try:
            text = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"no answer in {timeout} s; {self.lines()}") from None
        assert text is not None, f"the rank ended with {self.wait(10)}; {self.lines()}"
        kind, *answer = text.split()
        if kind == "failed":
            raise Failed(answer[0], int(answer[1]), float(answer[2]))
        assert kind == "ok", f"{text}; {self.lines()}"
        return answer

    def do(self, *args: object, timeout: float = START_S) -> list[str]:
        self.start(*args)
        return self.finish(timeout)

    def init(self, devices: int = 1) -> Rank:
        assert self.do("init") == [str(devices)]
        return self

    def listen(self, device: int = 0) -> tuple[int, str]:
        number, handle = self.do("listen", device)
        return int(number), handle

    def connect(self, handle: str, ms: int = 10000, device: int = 0) -> int:
        return int(self.do("connect", handle, ms, device, timeout=ms / 1e3 + 5)[0])

    def accept(self, listener: int, ms: int = 10000) -> int:
        return int(self.do("accept", listener, ms, timeout=ms / 1e3 + 5)[0])


@dataclass
class Link:
    """A connection from one rank to another, by their numbers for it."""

    sender: Rank
    receiver: Rank
    sends: int
    receives: int

    def move(self, count: int = 8, size: int = 65536, ms: int = 10000) -> None:
        """Messages cross and arrive right."""
        self.start(count, size, ms)
        self.finish(ms / 1e3 + 10)

    def start(self, count: int, size: int, ms: int) -> None:
        self.receiver.start("receive", self.receives, count, size, ms)
        self.sender.start("send", self.sends, count, size, ms)

    def finish(self, timeout: float) -> None:
        self.sender.finish(timeout)
        self.receiver.finish(timeout)


def connect(
    sender: Rank,
    receiver: Rank,
    listener: Optional[tuple[int, str]] = None,
    devices: tuple[int, int] = (0, 0),
) -> Link:
    """devices: those of connect and of listen."""
    number, handle = listener or receiver.listen(devices[1])
    sends = sender.connect(handle, device=devices[0])
    return Link(sender, receiver, sends, receiver.accept(number))
