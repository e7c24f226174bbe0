# SPDX-License-Identifier: Apache-2.0
"""One rank of a conformance test: a process with a plugin in it, led by its standard input.

Every line is a call: {"id", "call", "thread", arguments}. Answers come back as
lines on standard output. Calls run on one of two threads, as in NCCL: service
(listen, connect, accept, regMr, close) and progress (isend, irecv, test).

Peer, at the end, is the leading side.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import queue
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

from nccl_plugin import NcclError, Plugin

PROGRESS = {"isend", "irecv", "iflush", "test", "wait", "stream"}
CANARY = b"\xc7" * 64


def pattern(seed: int, size: int) -> bytes:
    """The first size bytes of the seed's stream: a shorter one is a longer one's beginning."""
    return random.Random(seed).randbytes((size + 3) // 4 * 4)[:size]


class Rank:
    """The calls. Objects of the plugin are named by small numbers."""

    def __init__(self) -> None:
        self.plugin: Plugin
        self.objects: dict[int, Any] = {}
        self.lock = threading.Lock()

    def _keep(self, thing: Any) -> int:
        with self.lock:
            number = len(self.objects) + 1
            self.objects[number] = thing
        return number

    def open(self, path: str, api: int) -> dict[str, Any]:
        self.plugin = Plugin(Path(path), api)
        return {"name": self.plugin.name, "missing": self.plugin.may_be_null()}

    def init(self) -> int:
        self.plugin.init()
        return self.plugin.devices()

    def finalize(self) -> None:
        self.plugin.finalize()

    def properties(self, device: int = 0) -> dict[str, Any]:
        return self.plugin.properties(device)

    def listen(self) -> dict[str, Any]:
        size = self.plugin.handle_size
        handle = ctypes.create_string_buffer(b"\0" * size + CANARY, size + len(CANARY))
        listener = self.plugin.listen(handle)
        if handle.raw[size:] != CANARY:
            raise AssertionError("listen wrote beyond the handle")
        return {"handle": handle.raw[:size].hex(), "listener": self._keep(listener)}

    def connect(self, handle: str, timeout: float = 10) -> dict[str, Any]:
        """As NCCL: the same scratch again and again. The comm is None if time ran out."""
        raw = bytes.fromhex(handle)
        scratch = ctypes.create_string_buffer(raw + CANARY, len(raw) + len(CANARY))
        began = time.monotonic()
        tries, comm = 0, None
        while comm is None and time.monotonic() - began < timeout:
            comm = self.plugin.connect(scratch)
            tries += 1
            if comm is None:
                time.sleep(0.0002)
        if scratch.raw[len(raw) :] != CANARY:
            raise AssertionError("connect wrote beyond the handle")
        return {"comm": comm and self._keep(comm), "tries": tries}

    def accept(self, listener: int, timeout: float = 10) -> dict[str, Any]:
        began = time.monotonic()
        tries, comm = 0, None
        while comm is None and time.monotonic() - began < timeout:
            comm = self.plugin.accept(self.objects[listener])
            tries += 1
            if comm is None:
                time.sleep(0.0002)
        return {"comm": comm and self._keep(comm), "tries": tries}

    def buffer(self, size: int, seed: Optional[int] = None) -> int:
        """Page-aligned memory, with the seed's pattern or poison."""
        memory = mmap.mmap(-1, max(size, mmap.PAGESIZE))
        number = self._keep(memory)
        self.fill(number, 0, size, seed)
        return number

    def fill(self, buffer: int, offset: int, size: int, seed: Optional[int] = None) -> None:
        data = b"\xa5" * size if seed is None else pattern(seed, size)
        self.objects[buffer][offset : offset + size] = data

    def check(self, buffer: int, offset: int, size: int, seed: Optional[int] = None) -> bool:
        """Whether the memory holds the seed's pattern, or poison."""
        expected = b"\xa5" * size if seed is None else pattern(seed, size)
        return self.objects[buffer][offset : offset + size] == expected

    def _address(self, buffer: int) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self.objects[buffer]))

    def register(self, comm: int, buffer: int, kind: int = 1) -> int:
        memory = self.objects[buffer]
        mhandle = self.plugin.register(self.objects[comm], self._address(buffer), len(memory), kind)
        if not mhandle:
            raise AssertionError("regMr gave a NULL handle")
        return self._keep(mhandle)

    def deregister(self, comm: int, mhandle: int) -> None:
        self.plugin.deregister(self.objects[comm], self.objects[mhandle])

    def _post(self, call: Any, timeout: float = 5) -> int:
        """Asks until there is a request: None means that it would block."""
        began = time.monotonic()
        request = call()
        while request is None and time.monotonic() - began < timeout:
            time.sleep(0.0002)
            request = call()
        if request is None:
            raise TimeoutError("no request was given")
        if request in (1, 0x5A5A):
            raise AssertionError("*request was not written")
        return self._keep(request)

    def isend(self, comm: int, buffer: int, offset: int, size: int, mhandle: int) -> int:
        address = self._address(buffer) + offset
        return self._post(
            lambda: self.plugin.isend(self.objects[comm], address, size, self.objects[mhandle])
        )

    def irecv(
        self, comm: int, buffer: int, offset: int, size: int, mhandle: int, count: int = 1
    ) -> int:
        address = self._address(buffer) + offset
        return self._post(
            lambda: self.plugin.irecv(
                self.objects[comm], address, size, self.objects[mhandle], 1, count
            )
        )

    def iflush(self, comm: int, buffer: int, size: int, mhandle: int) -> Optional[int]:
        return self.plugin.iflush(
            self.objects[comm], self._address(buffer), size, self.objects[mhandle]
        )

    def test(self, request: int) -> Optional[int]:
        return self.plugin.test(self.objects[request])

    def wait(self, requests: list[int], timeout: float = 10) -> list[dict[str, Any]]:
        """Tests them in this order, each to its end. One outcome each: size, or
        error (NCCL's code), or neither (time ran out); ms since the call."""
        began = time.monotonic()
        outcomes = []
        for request in requests:
            outcome: dict[str, Any] = {"size": None, "error": None}
            try:
                while outcome["size"] is None and time.monotonic() - began < timeout:
                    outcome["size"] = self.plugin.test(self.objects[request])
                    if outcome["size"] is None:
                        os.sched_yield()
            except NcclError as error:
                outcome["error"] = error.code
            outcome["ms"] = round((time.monotonic() - began) * 1e3, 1)
            outcomes.append(outcome)
        return outcomes

    def stream(
        self, comm: int, sends: bool, count: int, size: int, seed: int, outstanding: int
    ) -> dict[str, Any]:
        """Sends or receives count messages with so many outstanding, oldest
        first. Message i is the pattern of seed + i. Returns what was wrong, or
        the error that ended it."""
        buffers = [self.buffer(size) for _ in range(outstanding)]
        mhandles = [self.register(comm, buffer) for buffer in buffers]
        pending: list[tuple[int, int]] = []
        began, wrong, done, error = time.monotonic(), 0, 0, None
        try:
            for index in range(count + outstanding):
                slot = index % outstanding
                if len(pending) == min(outstanding, count) or (index >= count and pending):
                    number, request = pending.pop(0)
                    outcome = self.wait([request])[0]
                    if outcome["error"] is not None or outcome["size"] is None:
                        error = outcome["error"] or "no progress"
                        break
                    done += 1
                    if not sends:
                        place = buffers[number % outstanding]
                        good = outcome["size"] == size and self.check(place, 0, size, seed + number)
                        wrong += not good
                if index >= count:
                    continue
                if sends:
                    self.fill(buffers[slot], 0, size, seed + index)
                else:
                    self.fill(buffers[slot], 0, size)
                post = self.isend if sends else self.irecv
                pending.append((index, post(comm, buffers[slot], 0, size, mhandles[slot])))
        except NcclError as failure:
            error = failure.code
        ms = round((time.monotonic() - began) * 1e3, 1)
        return {"done": done, "wrong": wrong, "error": error, "ms": ms}

    def close(self, comm: int, sends: bool) -> float:
        """Milliseconds that it took."""
        began = time.monotonic()
        (self.plugin.close_send if sends else self.plugin.close_receive)(self.objects[comm])
        return round((time.monotonic() - began) * 1e3, 1)

    def close_listener(self, listener: int) -> None:
        self.plugin.close_listener(self.objects[listener])

    def leave(self) -> None:
        """Exits at once by the C library, as a job does whose work is done."""
        ctypes.CDLL(None).exit(0)


def _answer(lock: threading.Lock, answer: dict[str, Any]) -> None:
    with lock:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _work(rank: Rank, calls: "queue.Queue[Optional[dict[str, Any]]]", lock: threading.Lock) -> None:
    while True:
        line = calls.get()
        if line is None:
            return
        number, name = line.pop("id"), line.pop("call")
        try:
            _answer(lock, {"id": number, "result": getattr(rank, name)(**line)})
        except NcclError as error:
            _answer(lock, {"id": number, "code": error.code, "failure": str(error)})
        except Exception as error:
            _answer(lock, {"id": number, "failure": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Serves calls until standard input ends."""
    rank, lock = Rank(), threading.Lock()
    queues: dict[str, "queue.Queue[Optional[dict[str, Any]]]"] = {}
    for name in ("service", "progress"):
        queues[name] = queue.Queue()
        threading.Thread(target=_work, args=(rank, queues[name], lock), daemon=True).start()
    for text in sys.stdin:
        line = json.loads(text)
        queues["progress" if line["call"] in PROGRESS else "service"].put(line)


class PeerFailure(AssertionError):
    """A call failed; code is NCCL's, or None if the plugin was not to blame."""

    def __init__(self, text: str, code: Optional[int]) -> None:
        super().__init__(text)
        self.code = code


class Peer:
    """A rank in a process of its own. peer.listen(...) calls and waits; peer.start("wait", ...)
    returns a future, so that both ranks, and both threads of one, can work at once."""

    def __init__(
        self, prefix: Sequence[str] = (), environment: Optional[Mapping[str, str]] = None
    ) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            text=True,
        )
        self._pending: dict[int, "Future[Any]"] = {}
        self._lock = threading.Lock()
        self._last = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for text in self.process.stdout:
            answer = json.loads(text)
            future = self._pending.pop(answer["id"])
            if "failure" in answer:
                future.set_exception(PeerFailure(answer["failure"], answer.get("code")))
            else:
                future.set_result(answer["result"])
        for future in list(self._pending.values()):
            future.set_exception(PeerFailure("the peer's process ended", None))

    def start(self, call: str, **arguments: Any) -> "Future[Any]":
        future: "Future[Any]" = Future()
        assert self.process.stdin
        with self._lock:
            self._last += 1
            self._pending[self._last] = future
            line = json.dumps({"id": self._last, "call": call, **arguments})
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        return future

    def __getattr__(self, call: str) -> Any:
        if call.startswith("_"):
            raise AttributeError(call)
        return lambda **arguments: self.start(call, **arguments).result(timeout=60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)

    def dismiss(self) -> None:
        """Lets the process come to its end."""
        assert self.process.stdin
        try:
            self.process.stdin.close()
        except BrokenPipeError:  # it is over already
            pass

    def end(self) -> None:
        """Ends the process; it has lived long enough."""
        self.dismiss()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()


if __name__ == "__main__":
    main()
