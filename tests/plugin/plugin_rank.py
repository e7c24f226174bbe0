# SPDX-License-Identifier: Apache-2.0
"""One rank of a conformance test: a process with a plugin, controlled by its standard input.

Each input line is a call: {"id", "call", arguments}. Each answer is a line on
standard output. Calls run on one of two threads, as in NCCL: service (listen,
connect, accept, regMr, close) and progress (isend, irecv, test). The argument
"thread" names another thread for a call. The class Peer in plugin_peer.py controls such a process.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import mmap
import os
import queue
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from mappings import heap, mappings
from nccl_plugin import NcclError, Plugin

PROGRESS = {"isend", "irecv", "iflush", "test", "wait", "stream"}
CANARY = b"\xc7" * 64
BEYOND = 2000  # bytes after a message that must not change
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # of mallopt
EAGER_S = 0.02  # a wait that is longer has no message under way
ARENA, LIVE = 16 << 20, 300  # random registrations: bytes, and most at a time


def _idle(waited_s: float) -> None:
    """Lets others run. NCCL's thread would go on asking; a rank that has waited for long sleeps,
    too, because most waits for lost peers take seconds."""
    if waited_s < EAGER_S:
        os.sched_yield()
    else:
        time.sleep(0.0005)


def pattern(seed: int, size: int) -> bytes:
    """The first size bytes of the seed's random stream. A shorter pattern is a prefix of a longer
    one."""
    return random.Random(seed).randbytes((size + 3) // 4 * 4)[:size]


def _odd_stretch(
    draw: random.Random, live: "list[tuple[int, int, int]]", least: int
) -> tuple[int, int]:
    """A random range within ARENA, as offset and length, of at least `least` bytes. It may follow
    or equal a live range."""
    kind = draw.random()
    length = max(least, draw.randrange(1, draw.choice((200, 50_000, 50_000, 4_000_000))))
    if not live or kind < 0.6:
        return draw.randrange(ARENA - length), length
    offset, other, _ = draw.choice(live)
    if kind < 0.8 and other >= least:
        return offset, other
    return min(offset + other, ARENA - length), length


class Rank:
    """The calls. Small numbers stand for the plugin's objects."""

    def __init__(self) -> None:
        self.plugin: Plugin
        self.objects: dict[int, Any] = {}
        self.open_ends: dict[int, Callable[[int], None]] = {}  # and their close functions
        self.registered: dict[int, int] = {}  # memory handle to comm
        self.finished = 0  # messages of streams
        self.threads: set[str] = set()  # ids of the threads that init has started
        self._numbers = itertools.count(1)

    def _keep(self, thing: Any) -> int:
        number = next(self._numbers)
        self.objects[number] = thing
        return number

    def open(self, path: str, api: int) -> dict[str, Any]:
        self.plugin = Plugin(Path(path), api)
        collnet = self.plugin.exports(f"ncclCollNetPlugin_v{api}")
        name, missing = self.plugin.name, self.plugin.may_be_null()
        return {"name": name, "missing": missing, "collnet": collnet}

    def init(self) -> int:
        before = set(os.listdir("/proc/self/task"))
        self.plugin.init()
        self.threads |= set(os.listdir("/proc/self/task")) - before
        return self.plugin.devices()

    def finalize(self) -> None:
        self.plugin.finalize()

    def contexts(self) -> list[int]:
        return self.plugin.contexts()

    def end_context(self, context: int) -> None:
        self.plugin.end(context)

    def unload(self) -> None:
        self.plugin.unload()

    def devices(self) -> int:
        return self.plugin.devices()

    def properties(self, device: int = 0) -> dict[str, Any]:
        return self.plugin.properties(device)

    def signal_masks(self) -> dict[str, int]:
        """The blocked signals of each of the plugin's threads, by thread name."""
        masks = {}
        for thread in self.threads:
            try:
                status = Path("/proc/self/task", thread, "status").read_text()
            except FileNotFoundError:  # it has ended since it was listed
                continue
            fields = dict(line.split(":", 1) for line in status.splitlines())
            masks[fields["Name"].strip()] = int(fields["SigBlk"], 16)
        return masks

    def resources(self) -> dict[str, int]:
        """Counts of the resources that a plugin could leak. Anonymous mappings do not count in a
        build with a sanitizer, which has some of its own."""
        named, anonymous = mappings()
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "files mapped": len(named),
            "anonymous": len(anonymous),
            "threads": len(os.listdir("/proc/self/task")),
        }

    def memory(self) -> dict[str, int]:
        """KiB of private memory: mapped, since adjacent mappings count as one in resources(), and
        from malloc. 0 with a sanitizer."""
        gc.collect()
        _, anonymous = mappings()
        spans = [fields[0].split("-") for fields in anonymous if "w" in fields[1]]
        mapped = sum(int(end, 16) - int(begin, 16) for begin, end in spans)
        return {"anonymous KiB": mapped >> 10, "heap KiB": heap() >> 10}

    def listen(self, device: int = 0) -> dict[str, Any]:
        size = self.plugin.handle_size
        handle = ctypes.create_string_buffer(b"\0" * size + CANARY, size + len(CANARY))
        listener = self._keep(self.plugin.listen(handle, device))
        self.open_ends[listener] = self.plugin.close_listener
        if handle.raw[size:] != CANARY:
            raise AssertionError("listen wrote beyond the handle")
        return {"handle": handle.raw[:size].hex(), "listener": listener}

    def connect(
        self, handle: str, timeout: float = 10, device: int = 0, pause: float = 0.0002
    ) -> dict[str, Any]:
        """Calls connect as NCCL does: with the same handle, every pause seconds. The comm is None
        after the timeout."""
        (outcome,) = self.connect_all([handle], timeout, device, pause)
        return outcome

    def connect_all(
        self, handles: list[str], timeout: float = 10, device: int = 0, pause: float = 0.0002
    ) -> list[dict[str, Any]]:
        """Connects all handles at once, in turns, and tries each at least once. Each attempt has a
        copy of its handle."""
        texts = [bytes.fromhex(handle) + CANARY for handle in handles]
        scratches = [ctypes.create_string_buffer(text, len(text)) for text in texts]
        outcomes: list[dict[str, Any]] = [{"comm": None, "tries": 0} for _ in handles]
        left = list(zip(scratches, outcomes))
        began = time.monotonic()
        while left:
            for scratch, outcome in left:
                comm = self.plugin.connect(scratch, device)
                outcome["tries"] += 1
                if comm:
                    outcome["comm"] = self._keep(comm)
                    self.open_ends[outcome["comm"]] = self.plugin.close_send
            left = [(scratch, outcome) for scratch, outcome in left if not outcome["comm"]]
            if left:
                time.sleep(pause)
            if time.monotonic() - began >= timeout:
                break
        if any(not scratch.raw.endswith(CANARY) for scratch in scratches):
            raise AssertionError("connect wrote beyond the handle")
        return outcomes

    def accept(self, listener: int, timeout: float = 10) -> dict[str, Any]:
        began = time.monotonic()
        tries, comm = 0, None
        while comm is None and time.monotonic() - began < timeout:
            comm = self.plugin.accept(self.objects[listener])
            tries += 1
            if comm is None:
                time.sleep(0.0002)
        number = comm and self._keep(comm)
        if number:
            self.open_ends[number] = self.plugin.close_receive
        return {"comm": number, "tries": tries}

    def buffer(self, size: int, seed: Optional[int] = None) -> int:
        """Allocates page-aligned memory with the seed's pattern, or with poison if seed is None."""
        memory = mmap.mmap(-1, max(size, mmap.PAGESIZE))
        number = self._keep(memory)
        self.fill(number, 0, size, seed)
        return number

    def fill(self, buffer: int, offset: int, size: int, seed: Optional[int] = None) -> None:
        data = b"\xa5" * size if seed is None else pattern(seed, size)
        self.objects[buffer][offset : offset + size] = data

    def check(self, buffer: int, offset: int, size: int, seed: Optional[int] = None) -> bool:
        """Whether the memory contains the seed's pattern, or poison if seed is None."""
        expected = b"\xa5" * size if seed is None else pattern(seed, size)
        return self.objects[buffer][offset : offset + size] == expected

    def _address(self, buffer: int) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self.objects[buffer]))

    def register(
        self, comm: int, buffer: int, kind: int = 1, offset: int = 0, size: Optional[int] = None
    ) -> int:
        """Registers a part of a buffer, or the whole buffer."""
        size = len(self.objects[buffer]) if size is None else size
        address = self._address(buffer) + offset
        mhandle = self.plugin.register(self.objects[comm], address, size, kind)
        if not mhandle:
            raise AssertionError("regMr gave a NULL handle")
        number = self._keep(mhandle)
        self.registered[number] = comm
        return number

    def deregister(self, comm: int, mhandle: int) -> None:
        del self.registered[mhandle]
        self.plugin.deregister(self.objects[comm], self.objects.pop(mhandle))

    def _post(self, post: "Callable[..., Optional[int]]", *place: Any) -> Optional[int]:
        """Calls isend or irecv once. place: comm, buffer, offset, size, mhandle and further
        arguments of irecv. None: the plugin cannot take a request now."""
        comm, buffer, offset, size, mhandle, *more = place
        address = self._address(buffer) + offset
        request = post(self.objects[comm], address, size, self.objects[mhandle], *more)
        if request in (1, 0x5A5A):
            raise AssertionError("*request was not written")
        return self._keep(request) if request else None

    def _post_soon(self, post: "Callable[..., Optional[int]]", *place: Any) -> int:
        began = time.monotonic()
        while time.monotonic() - began < 5:
            request = self._post(post, *place)
            if request:
                return request
            time.sleep(0.0002)
        raise TimeoutError("no request was given")

    def isend(self, comm: int, buffer: int, offset: int, size: int, mhandle: int) -> int:
        return self._post_soon(self.plugin.isend, comm, buffer, offset, size, mhandle)

    def irecv(
        self, comm: int, buffer: int, offset: int, size: int, mhandle: int, count: int = 1
    ) -> int:
        return self._post_soon(self.plugin.irecv, comm, buffer, offset, size, mhandle, 1, count)

    def iflush(self, comm: int, buffer: int, size: int, mhandle: int) -> Optional[int]:
        return self.plugin.iflush(
            self.objects[comm], self._address(buffer), size, self.objects[mhandle]
        )

    def null_calls(self, comm: Optional[int] = None) -> dict[str, int]:
        return self.plugin.null_calls(self.objects[comm] if comm else 0)

    def test(self, request: int) -> Optional[int]:
        return self.plugin.test(self.objects[request])

    def wait(self, requests: list[int], timeout: float = 10) -> list[dict[str, Any]]:
        """Tests the requests in this order, each until it ends. Returns an outcome for each: size;
        error (NCCL's code); or neither after the timeout; and ms since the call."""
        began = time.monotonic()
        outcomes = []
        for request in requests:
            outcome: dict[str, Any] = {"size": None, "error": None}
            try:
                while outcome["size"] is None and time.monotonic() - began < timeout:
                    outcome["size"] = self.plugin.test(self.objects[request])
                    if outcome["size"] is None:
                        _idle(time.monotonic() - began)
            except NcclError as error:
                outcome["error"] = error.code
            outcome["ms"] = round((time.monotonic() - began) * 1e3, 1)
            outcomes.append(outcome)
        return outcomes

    def stream(
        self, comm: int, sends: bool, count: int, size: int, seed: int, outstanding: int
    ) -> dict[str, Any]:
        """Sends or receives count messages, with at most `outstanding` requests at a time.
        Message i is the pattern of seed + i, and the bytes after it must not change. Returns the
        number of wrong messages, and the error that ended the stream."""
        buffers = [self.buffer(size + BEYOND) for _ in range(outstanding)]
        mhandles = [self.register(comm, buffer) for buffer in buffers]
        post = self.plugin.isend if sends else self.plugin.irecv
        pending: list[int] = []
        began, posted, done, wrong, error = time.monotonic(), 0, 0, 0, None
        try:
            while done < count and error is None:
                while posted < count and posted - done < outstanding:
                    slot = posted % outstanding
                    self.fill(buffers[slot], 0, size, seed + posted if sends else None)
                    request = self._post(post, comm, buffers[slot], 0, size, mhandles[slot])
                    if request is None:
                        break
                    pending.append(request)
                    posted += 1
                if not pending:
                    continue
                outcome = self.wait([pending.pop(0)])[0]
                if outcome["size"] is None:
                    error = outcome["error"] or "no progress"
                    break
                place = buffers[done % outstanding]
                good = outcome["size"] == size and self.check(place, 0, size, seed + done)
                wrong += not (good and self.check(place, size, BEYOND))
                done += 1
                self.finished += 1
        except NcclError as failure:
            error = failure.code
        ms = round((time.monotonic() - began) * 1e3, 1)
        return {"done": done, "wrong": wrong, "error": error, "ms": ms}

    def send_fleeting(self, comm: int, count: int, size: int, seed: int) -> Optional[int]:
        """Sends count messages from memory of their own. The memory is deregistered and unmapped
        right after its send is done. After every eighth message a pause leaves it unmapped. Returns
        NCCL's code of a failure."""
        for number in range(count):
            memory = mmap.mmap(-1, size)
            memory[:] = pattern(seed + number, size)
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            try:
                mhandle = self.plugin.register(self.objects[comm], address, size, 1)
                request = None
                while request is None:
                    request = self.plugin.isend(self.objects[comm], address, size, mhandle)
                while self.plugin.test(request) is None:
                    os.sched_yield()
                self.plugin.deregister(self.objects[comm], mhandle)
            except NcclError as error:
                return error.code
            memory.close()
            if number % 8 == 0:
                time.sleep(0.002)
        return None

    def register_at_random(self, comm: int, count: int, sends: int, size: int, seed: int) -> None:
        """Registers count random ranges of one buffer, which may overlap, touch or be equal, and
        deregisters them in random order. During that, it sends `sends` messages of size bytes, each
        from one range while another is deregistered."""
        draw, live = random.Random(seed), []
        buffer = self.buffer(ARENA)
        for number in range(count):
            message, due = divmod(number, count // sends)
            offset, length = _odd_stretch(draw, live, size if due == 0 else 1)
            mhandle = self.register(comm, buffer, offset=offset, size=length)
            live.append((offset, length, mhandle))
            if due == 0:
                self.fill(buffer, offset, size, seed + message)
                request = self.isend(comm, buffer, offset, size, mhandle)
                if len(live) > 1:
                    self.deregister(comm, live.pop(-2)[2])
                (outcome,) = self.wait([request])
                if outcome["size"] != size:
                    raise AssertionError(f"message {message}: {outcome}")
            while live and (len(live) > LIVE or draw.random() < 0.45):
                self.deregister(comm, live.pop(draw.randrange(len(live)))[2])
        for _, _, mhandle in live:
            self.deregister(comm, mhandle)
        self.objects.pop(buffer).close()

    def give_memory_back(self) -> None:
        """Makes malloc unmap large blocks as soon as they are freed, without raising its threshold,
        and make no arena for a thread that meets another one in malloc. The mappings then show the
        memory in use."""
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 128 << 10)
        libc.mallopt(M_ARENA_MAX, 1)

    def heap(self) -> int:
        """Bytes in use from malloc; 0 with a sanitizer."""
        return heap()

    def has_symbol(self, name: str) -> bool:
        """Whether this process or a preloaded library has the symbol."""
        return hasattr(ctypes.CDLL(None), name)

    def refuse(self, number: int) -> int:
        """Makes the plugin's number-th system request from now on fail; 0: none. Returns the
        requests that were left before the last such failure; 0: it has happened."""
        return ctypes.CDLL(None).stingy_refuse(number)

    def messages(self) -> int:
        """The number of messages that this rank's streams have completed."""
        return self.finished

    def close(self, comm: int) -> float:
        """Closes a comm. Returns the duration in ms."""
        began = time.monotonic()
        self.open_ends.pop(comm)(self.objects[comm])
        return round((time.monotonic() - began) * 1e3, 1)

    def close_listener(self, listener: int) -> None:
        self.open_ends.pop(listener)(self.objects[listener])

    def abort(self, comm: int, buffer: int, mhandle: Optional[int] = None) -> float:
        """Closes a comm with outstanding requests and unmaps the buffer at once, so a later access
        crashes this process. The memory of an mhandle is deregistered and unmapped shortly before
        the comm is closed. Returns the duration of close in ms."""
        if mhandle is None:
            took = self.close(comm)
            self.objects.pop(buffer).close()
            return took
        self.deregister(comm, mhandle)
        self.objects.pop(buffer).close()
        time.sleep(0.02)  # segments on their way arrive
        return self.close(comm)

    def reset(self) -> None:
        """Ends a job: deregisters all memory, closes every comm and listener in its current state,
        and unmaps the memory."""
        for mhandle, comm in list(self.registered.items()):
            if comm in self.open_ends:
                self.deregister(comm, mhandle)
        for number, close in list(self.open_ends.items()):
            del self.open_ends[number]
            close(self.objects[number])
        self.registered.clear()
        self.objects.clear()

    def fork(self, **given: Any) -> dict[str, int]:
        """Forks. Returns NCCL's code of each call that the child makes with inherited objects."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, json.dumps(self._try_all(**given)).encode())
            self.leave()
        os.close(writer)
        with os.fdopen(reader) as codes:
            text = codes.read()
        if os.waitpid(child, 0)[1] != 0 or not text:
            raise AssertionError(f"the child died; before that: {text!r}")
        return json.loads(text)

    def _try_all(
        self, handle: str, listener: int, comm: int, buffer: int, mhandle: int, request: int
    ) -> dict[str, int]:
        """comm: a receiving comm with an unfinished request."""
        place = {"comm": comm, "buffer": buffer}
        calls: list[tuple[str, dict[str, Any]]] = [
            ("devices", {}),
            ("properties", {}),
            ("listen", {}),
            ("connect", {"handle": handle}),
            ("accept", {"listener": listener}),
            ("register", place),
            ("irecv", {**place, "offset": 0, "size": 16, "mhandle": mhandle}),
            ("test", {"request": request}),
            ("deregister", {"comm": comm, "mhandle": mhandle}),
            ("init", {}),
            ("close", {"comm": comm}),
            ("close_listener", {"listener": listener}),
            ("finalize", {}),
        ]
        codes = {}
        for name, arguments in calls:
            try:
                getattr(self, name)(**arguments)
                codes[name] = 0
            except NcclError as error:
                codes[name] = error.code
        return codes

    def leave(self) -> None:
        """Exits by the C library's exit, without finalize, as a finished job does."""
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
    for text in sys.stdin:
        line = json.loads(text)
        name = line.pop("thread", "progress" if line["call"] in PROGRESS else "service")
        if name not in queues:
            queues[name] = queue.Queue()
            threading.Thread(target=_work, args=(rank, queues[name], lock), daemon=True).start()
        queues[name].put(line)


if __name__ == "__main__":
    main()
