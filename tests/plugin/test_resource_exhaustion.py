# SPDX-License-Identifier: Apache-2.0
"""Each of the plugin's requests for memory, a thread or a descriptor fails once. A call that needs
the resource returns an error and leaks nothing, and later calls succeed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ends import ends_between, move
from nccl_plugin import REMOTE_ERROR, SYSTEM_ERROR
from plugin_peer import Peer, PeerFailure

from harp import paths
from tools.hosts.ranks import remove_wire, wire_path

API = 12
INSTANCES = 2
MOST = 200  # requests per attempt; more would mean that the loop does not end
SIZE = 100_000
SHORT_TIMEOUT = {"HARP_TIMEOUT_MS": "1000"}


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[tuple[Peer, Peer]]:
    """Two ranks on a wire, with the plugin loaded but not initialized."""
    stingy = paths.build_dir() / "tests/plugin/libstingy.so"
    wire = wire_path()
    started = []
    try:
        for number in (1, 2):
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / "ztcp0.conf").write_text(
                f"device = wire:{wire}\naddress = 10.9.0.{number}/24\n"
                f"instances = {INSTANCES}\nflows = 2\n"
            )
            site = {"HARP_CONF_DIR": str(folder), "HARP_RUN_DIR": str(folder), **SHORT_TIMEOUT}
            rank = Peer([], {"LD_PRELOAD": str(stingy), **site})
            started.append(rank)
            rank.open(path=str(paths.nccl_plugin_path()), api=API)
        if not started[0].has_symbol(name="stingy_refuse"):
            pytest.skip("a sanitizer replaces the preloaded functions")
        yield started[0], started[1]
        for rank in started:
            rank.end()
    finally:
        for rank in started:
            rank.kill()
        remove_wire(wire)


def workers(rank: Peer) -> int:
    tasks = Path(f"/proc/{rank.process.pid}/task").glob("*/comm")
    return [task.read_text() for task in tasks].count("harp\n")


def refusals(rank: Peer, attempt: Callable[[], None]) -> list[int]:
    """Repeats the attempt, each time with the next request failing, until none fails. Returns
    NCCL's codes of the failed attempts."""
    codes = []
    for number in itertools.count(1):
        assert number < MOST
        rank.refuse(number=number)
        try:
            attempt()
        except PeerFailure as failure:
            assert failure.code is not None, failure
            codes.append(failure.code)
        if rank.refuse(number=0):
            break
    return codes


def a_message(one: Peer, other: Peer) -> None:
    sender, receiver = ends_between(one, other, SIZE, seed=4)
    move(sender, receiver, SIZE, 4)
    for rank in (one, other):
        rank.reset()


@pytest.mark.sanitized
@pytest.mark.slow
def test_init_survives_refused_resources(ranks: tuple[Peer, Peer]) -> None:
    rank, other = ranks

    def attempt() -> None:
        rank.init()
        begun = workers(rank)
        rank.finalize()
        assert begun == INSTANCES  # init succeeds only with all workers

    attempt()
    before = rank.resources()
    codes = refusals(rank, attempt)
    assert len(codes) > 10 and set(codes) == {SYSTEM_ERROR}
    now = rank.resources()
    assert now.pop("anonymous") <= before.pop("anonymous") + len(codes) // 4
    assert now == before
    for one in ranks:
        assert one.init() == 1
    a_message(rank, other)


@pytest.mark.parametrize("who", [0, 1])
def test_links_survive_refused_resources(ranks: tuple[Peer, Peer], who: int) -> None:
    """The requests of the connecting rank, or of the listening rank, fail."""
    for rank in ranks:
        assert rank.init() == 1
    one, other = ranks

    def attempt() -> None:
        sender, receiver = ends_between(one, other, SIZE, seed=4)
        move(sender, receiver, SIZE, 4)

    def attempt_and_clean() -> None:
        try:
            attempt()
        finally:
            for rank in ranks:
                rank.reset()

    a_message(one, other)
    codes = refusals(ranks[who], attempt_and_clean)
    assert codes and set(codes) <= {SYSTEM_ERROR, REMOTE_ERROR}
    a_message(one, other)
