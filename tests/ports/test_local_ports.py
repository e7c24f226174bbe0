# SPDX-License-Identifier: Apache-2.0
"""The local port of a connection is hard to guess (RFC 6056), reaches the right queue, and is not
in TIME-WAIT at a peer. The tests use a wire port; all ports choose by the same rule."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from port_probe import PortError, Probe

Make = Callable[..., Probe]
FIRST, LAST = 49152, 65535
EIGHTH = (LAST + 1 - FIRST) // 8


def opened(probe: Make, path: Path, queues: int = 1, ports: str = "") -> Probe:
    a = probe()
    if ports:
        a.open(f"wire:{path}", queues, "10.1.0.1/24", ports=ports)
    else:
        a.open(f"wire:{path}", queues, "10.1.0.1/24")
    return a


@pytest.mark.parametrize("queues", [1, 3, 8])
def test_local_ports_are_random_and_match_queue(probe: Make, tmp_path: Path, queues: int) -> None:
    a = opened(probe, tmp_path / "w", queues)
    for queue in range(queues):
        got = [a.reserve(queue) for _ in range(60)]
        assert len(set(got)) == len(got)
        assert all(port % queues == queue and FIRST <= port <= LAST for port in got)
        # A random choice almost never misses three eighths, or is sequential throughout.
        assert len({(port - FIRST) // EIGHTH for port in got}) >= 6
        steps = {after - before for before, after in zip(got, got[1:])}
        assert len(steps) > 50


def test_two_processes_choose_different_ports(probe: Make, tmp_path: Path) -> None:
    one, other = opened(probe, tmp_path / "w"), opened(probe, tmp_path / "w2")
    assert [one.reserve() for _ in range(5)] != [other.reserve() for _ in range(5)]


def test_local_port_is_random_in_small_range(probe: Make, tmp_path: Path) -> None:
    first = set()
    for i in range(30):
        first.add(opened(probe, tmp_path / f"w{i}", ports="6000-6001").reserve())
        if len(first) == 2:
            return
    pytest.fail(f"thirty times {first}")


def test_released_port_is_reused_last(probe: Make, tmp_path: Path) -> None:
    """A peer may keep a released port in TIME-WAIT, which a new connection would hit."""
    a = opened(probe, tmp_path / "w", ports="6000-6007")
    used = [a.reserve() for _ in range(4)]
    for port in used:
        a.release(port)
    fresh = [a.reserve() for _ in range(4)]
    assert set(used) | set(fresh) == set(range(6000, 6008))
    # The released ports are reused in the order of their release.
    assert [a.reserve() for _ in range(4)] == used
    with pytest.raises(PortError) as none:
        a.reserve()
    assert none.value.number == errno.EADDRINUSE


def test_requested_port_ignores_reuse_delay(probe: Make, tmp_path: Path) -> None:
    """A requested port is available at once. Its reuse delay restarts at the next release."""
    a = opened(probe, tmp_path / "w", ports="6000-6003")
    for port in (6000, 6001, 6002, 6003):
        assert a.reserve(0, port) == port
        a.release(port)
    assert a.reserve(0, 6000) == 6000
    a.release(6000)
    assert [a.reserve() for _ in range(4)] == [6001, 6002, 6003, 6000]


def test_released_ports_keep_their_queue(probe: Make, tmp_path: Path) -> None:
    a = opened(probe, tmp_path / "w", 2, ports="6000-6003")
    for port in (6001, 6000, 6003, 6002):
        a.reserve(port % 2, port)
        a.release(port)
    assert [a.reserve(0), a.reserve(1), a.reserve(0), a.reserve(1)] == [6000, 6001, 6002, 6003]


def test_oldest_released_ports_become_free(probe: Make, tmp_path: Path) -> None:
    """Beyond 4096 released ports, the oldest count as never used."""
    a = opened(probe, tmp_path / "w", ports="10000-14096")  # 4097 ports
    for port in range(10000, 14097):
        a.reserve(0, port)
        a.release(port)
    assert a.reserve() == 10000
    assert a.reserve() == 10001


@pytest.mark.parametrize("queues", [1, 3, 8])
@pytest.mark.parametrize("ports", ["6000-6001", "5990-6150", "6016-6079", "6017-6144"])
def test_every_port_of_the_range_is_found(
    probe: Make, tmp_path: Path, queues: int, ports: str
) -> None:
    first, last = map(int, ports.split("-"))
    a = opened(probe, tmp_path / "w", queues, ports)
    for queue in range(queues):
        theirs = [port for port in range(first, last + 1) if port % queues == queue]
        assert sorted(a.reserve(queue) for _ in theirs) == theirs
        with pytest.raises(PortError):
            a.reserve(queue)


def user_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


def test_port_choice_has_low_cost(probe: Make, tmp_path: Path) -> None:
    """A connection may try a thousand ports of sixteen thousand."""
    a = opened(probe, tmp_path / "w")
    before = user_seconds(a.process.pid)
    for _ in range(8000):
        a.reserve()
    assert user_seconds(a.process.pid) - before < 0.1
