# SPDX-License-Identifier: Apache-2.0
"""A fuzzer for the readers of statistics and of traces, which are Python: files that
almost make sense. Anyone on the host may have written them.

Usage: readers.py SECONDS [SEED]. Whatever the bytes, a reader says what is wrong or returns
what fits the file, in little memory and time. Exit 1 if it does not; the file's bytes are
printed then."""

from __future__ import annotations

import random
import resource
import struct
import sys
import time
from pathlib import Path

from harp.observe import statfile, trace

NAMED = Path("file")
MEMORY = 1 << 30  # bytes that a reader may have at most, the interpreter included
SLOW = 10.0  # seconds; files here have a few hundred bytes
LAYOUT = range(16, 88, 4)  # where a header says how many there are, how large, and where
EDGES = (0, 1, 2, 3, 7, 8, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)


def statistics() -> bytes:
    """A small file that is right: two counters, two instances, two flows."""
    header, counter, flow = statfile._HEADER, statfile._COUNTER, statfile._FLOW
    times = statfile._TIMES.pack(9, *range(24))
    entry = flow.size + len(times)
    table = header.size
    values = table + 2 * counter.size
    flows = values + 2 * 16
    size = flows + 2 * entry
    text = [b"text"] * 7
    return b"".join([
        header.pack(b"HARPSTAT", 1, header.size, size, 1, 2, 3, 2, 2, table, counter.size, values,
                    16, flows, entry, 2, *text),
        counter.pack(b"one", 0), counter.pack(b"two", 1), struct.pack("=4Q", 1, 2, 3, 4),
        flow.pack(2, 1, 7, 0, 0, 83, bytes(4), bytes(4), 1, 2, *range(11), 1, 2, 3, *range(4)),
        times,
        flow.pack(2, 99, 7, 1, 0, 0, bytes(4), bytes(4), 1, 2, *range(11), 1, 2, 3, *range(4)),
        times,
    ])  # fmt: skip


def events() -> bytes:
    """A trace that is right: one event's name, two instances with a record each."""
    event, record = trace._EVENT, trace._RECORD
    text = [b"text"] * 3
    return b"".join([
        trace._HEADER.pack(b"HARPTRCE", 1, 0, event.size, 1, 2, 9, 10**9, 10**18, *text),
        event.pack(b"name", b"a", b"b"),
        struct.pack("=Q", 1), record.pack(5 << 16 | 7, 0), struct.pack("=Q", 1), record.pack(6, 9),
    ])  # fmt: skip


def corrupt(draw: random.Random, data: bytearray) -> None:
    """One thing that a wrong writer does: another word, byte, or length."""
    at = draw.randrange(max(1, min(len(data), 160)))
    kind = draw.randrange(6)
    if kind == 0 and data:
        data[at] = draw.randrange(256)
    elif kind == 1:
        del data[draw.randrange(len(data) + 1) :]
    elif kind == 2:
        data += bytes(draw.randrange(200))
    elif kind == 5 and len(data) >= LAYOUT.stop:  # several at once, which may agree
        for place in LAYOUT:
            if draw.random() < 0.3:
                struct.pack_into("=I", data, place, draw.choice(EDGES))
    else:
        code, size = ("=I", 4) if kind == 3 else ("=Q", 8)
        at -= at % 4
        if at + size <= len(data):
            value = draw.choice(EDGES) if draw.random() < 0.7 else draw.getrandbits(8 * size)
            struct.pack_into(code, data, at, value)


def read_statistics(data: bytes) -> None:
    try:
        process = statfile._parse(NAMED, "file", lambda: data, True, 0)
    except statfile.StatError:
        return
    assert len(process.instances) <= len(data) and len(process.flows) <= len(data)


def read_trace(data: bytes) -> None:
    try:
        found = trace._parse(NAMED, data)
    except trace.TraceError:
        return
    assert len(found.records) <= len(data)


def run(seconds: float, seed: int) -> int:
    """Files that were read."""
    draw = random.Random(seed)
    began, count = time.monotonic(), 0
    for whole, read in ((statistics(), read_statistics), (events(), read_trace)):
        read(whole)
    while time.monotonic() - began < seconds:
        whole, read = draw.choice(((statistics(), read_statistics), (events(), read_trace)))
        data = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            corrupt(draw, data)
        started = time.process_time()
        try:
            read(bytes(data))
            assert time.process_time() - started < SLOW, "it takes too long"
        except BaseException:
            print(f"{read.__name__}: {bytes(data).hex()}", file=sys.stderr)
            raise
        count += 1
    return count


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    executed = run(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(f"stat::number_of_executed_units: {executed}")
