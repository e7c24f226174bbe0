# SPDX-License-Identifier: Apache-2.0
"""The first failure's trace goes to a slow run folder, such as one on NFS. NCCL's threads do not
wait for it, and finalize and exit wait only for a limited time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ends import ends_between, errors_of
from nccl_plugin import INVALID_USAGE
from pairs import rank_at
from plugin_peer import Peer

from harp import paths
from harp.observe import trace
from tools.hosts.ranks import remove_wire, wire_path

SLOW_MS = 4000
HANGS_MS = 40_000
BOUND_S = 2.0  # finalize and exit wait at most this long for a trace
BUSY_S = 3.0  # allowance for a busy machine; below SLOW_MS

Start = Callable[[int], "tuple[Peer, Peer]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start(ms): two ranks on a wire; the second one's folder takes ms milliseconds for a trace."""
    wire = wire_path()
    slow = paths.build_dir() / "tests/plugin/libslow.so"
    ranks: list[Peer] = []

    def make(ms: int) -> tuple[Peer, Peer]:
        late = {"LD_PRELOAD": str(slow), "SLOW_TRACE_MS": str(ms)}
        for number, environment in ((1, {}), (2, late)):
            keys = f"device = wire:{wire}\naddress = 10.9.0.{number}/24\n"
            ranks.append(rank_at(tmp_path / str(number), keys, **environment))
        if not ranks[1].has_symbol(name="slow_is_here"):
            pytest.skip("a sanitizer replaces the preloaded functions")
        return ranks[0], ranks[1]

    yield make
    for rank in ranks:
        rank.kill()
    remove_wire(wire)


def a_failure(sender: Peer, receiver: Peer) -> float:
    """Makes a link fail. Returns the seconds until the receiver's test() reports it."""
    sends, receives = ends_between(sender, receiver, 2000, seed=1)
    request = receives.receive(1000)
    sends.send(2000)
    began = time.monotonic()
    assert errors_of(receiver, [request], 20) == [INVALID_USAGE]
    return time.monotonic() - began


def traces(folder: Path, timeout: float = 0.0) -> list[Path]:
    limit = time.monotonic() + timeout
    while not list(folder.glob("*.trace")) and time.monotonic() < limit:
        time.sleep(0.02)
    return list(folder.glob("*.trace"))


@pytest.mark.slow
def test_slow_trace_write_does_not_delay_test_call(start: Start, tmp_path: Path) -> None:
    sender, receiver = start(SLOW_MS)
    assert a_failure(sender, receiver) < BUSY_S
    assert traces(tmp_path / "2") == []
    (path,) = traces(tmp_path / "2", timeout=SLOW_MS / 1e3 + 10)
    assert "message 0 is larger than the receive" in trace.read(path).reason


def test_finalize_waits_at_most_2_s_for_trace(start: Start) -> None:
    """The file system hangs. finalize still frees HARP's resources, and a new init succeeds."""
    sender, receiver = start(HANGS_MS)
    a_failure(sender, receiver)
    receiver.reset()
    began = time.monotonic()
    receiver.finalize()
    assert BOUND_S * 0.9 < time.monotonic() - began < BOUND_S + 2 * BUSY_S
    receiver.unload()
    receiver.open(path=str(paths.nccl_plugin_path()), api=12)
    assert receiver.init() == 1


def test_process_exit_waits_for_trace(start: Start, tmp_path: Path) -> None:
    sender, receiver = start(500)
    a_failure(sender, receiver)
    receiver.start("leave")
    assert receiver.process.wait(timeout=20) == 0
    (path,) = traces(tmp_path / "2")
    assert trace.read(path).records


def test_trace_thread_blocks_signals(start: Start) -> None:
    sender, receiver = start(SLOW_MS)
    a_failure(sender, receiver)
    tasks = Path(f"/proc/{receiver.process.pid}/task").glob("*")
    (writer,) = [one for one in tasks if (one / "comm").read_text() == "harp-trace\n"]
    fields = dict(line.split(":", 1) for line in (writer / "status").read_text().splitlines())
    blocked = int(fields["SigBlk"], 16)
    assert all(blocked >> (number - 1) & 1 for number in (1, 2, 10, 12, 14, 15, 17))
