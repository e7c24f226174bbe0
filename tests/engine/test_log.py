# SPDX-License-Identifier: Apache-2.0
"""The queue of messages between worker threads and NCCL's logger."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from harp.testing import _engine


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    _engine.forget_log()
    yield
    _engine.forget_log()


def text(number: int) -> bytes:
    """Texts that differ in more than their digits."""
    return bytes(ord("a") + int(digit) for digit in f"{number:06d}")


def test_log_lines_come_out_once_in_order() -> None:
    _engine.post(b"first line", warn=True)
    _engine.post(b"second line")
    assert _engine.drain() == [("WARN", "first line"), ("INFO", "second line")]
    assert _engine.drain() == []


def test_long_log_line_is_truncated() -> None:
    _engine.post(b"y" * 2000)
    ((_, line),) = _engine.drain()
    assert set(line) == {"y"} and 500 < len(line) < 700


def test_full_log_queue_drops_and_counts() -> None:
    before = _engine.dropped()
    for number in range(_engine.QUEUE + 5):
        _engine.post(b"full " + text(number))
    lines = _engine.drain()
    assert [line for _, line in lines] == [
        "full " + text(number).decode() for number in range(_engine.QUEUE)
    ]
    assert _engine.dropped() - before == 5


def test_similar_log_lines_are_rate_limited() -> None:
    for number in range(100):
        _engine.post(b"peer 10.0.0.%d is gone" % number)
    _engine.post(b"another matter")
    lines = [line for _, line in _engine.drain()]
    assert lines == [f"peer 10.0.0.{number} is gone" for number in range(_engine.BURST)] + [
        "another matter"
    ]


@pytest.mark.slow
def test_suppressed_log_lines_are_counted() -> None:
    code = """
import time
from harp.testing import _engine
for number in range(_engine.BURST + 3):
    _engine.post(b"loss %d" % number)
_engine.drain()
time.sleep(5.5)
_engine.post(b"loss 99")
print(_engine.drain()[0][1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "loss 99 (and 3 more like this in 5 s)", done.stderr


def test_log_lines_of_many_threads_are_kept() -> None:
    def post(thread: int) -> None:
        for number in range(10):
            _engine.post(b"thread " + text(thread) + b" " + text(number))

    threads = [threading.Thread(target=post, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({line for _, line in _engine.drain()}) == 80


@pytest.mark.parametrize("debug, said", [("1", True), ("0", False), (None, False)])
def test_harp_debug_writes_log_to_stderr(debug: "str | None", said: bool) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "HARP_DEBUG"}
    if debug:
        environment["HARP_DEBUG"] = debug
    done = subprocess.run(
        [sys.executable, "-c", "from harp.testing import _engine; _engine.post(b'hello', True)"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ("WARN: hello\n" in done.stderr) is said
