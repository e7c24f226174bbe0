# SPDX-License-Identifier: Apache-2.0
"""harp top --by-peer shows what flows did with each peer in an interval."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harp import _tables
from harp.cli import top_peers
from harp.cli.top import line, rates, top
from harp.observe import statfile
from harp.observe.statfile import Process
from harp.testing import _engine

NEAR, FAR = "10.0.0.2", "10.0.10.3"


def ip(text: str) -> int:
    return int(struct.unpack("=I", socket.inet_aton(text))[0])


@pytest.fixture
def files(folders: Path) -> Iterator[list[_engine.StatFile]]:
    """The files of two NICs. Both have a flow with NEAR, and the first one has one with FAR."""
    found = [_engine.StatFile(device=f"packet:nic{nic}".encode()) for nic in range(2)]
    yield found
    for one in found:
        one.close()


def publish(file: _engine.StatFile, index: int, peer: str, scale: int, **more: Any) -> None:
    """A flow whose counters have grown to a multiple of scale."""
    file.flow(
        index,
        state=1,
        link=index + 1,
        direction="S",
        peer_address=ip(peer),
        peer_port=7,
        bytes_out=125_000_000 * scale,
        retransmits=2 * scale,
        ack_wait_ms=1000 * scale,
        window_wait_ms=500 * scale,
        device_wait_ms=250 * scale,
        receive_wait_ms=100 * scale,
        srtt_us=3000,
        min_rtt_us=50,
        message_times_ns=[1_500_000] * scale,
        **more,
    )


def readings(files: list[_engine.StatFile]) -> list[Process]:
    return [statfile.read(Path(one.path)) for one in files]


def test_rates_are_those_of_the_interval(files: list[_engine.StatFile]) -> None:
    publish(files[0], 0, NEAR, 5)
    publish(files[0], 1, FAR, 9)
    publish(files[1], 0, NEAR, 1)
    before = readings(files)
    publish(files[0], 0, NEAR, 6)
    publish(files[1], 0, NEAR, 2)
    near, far = top_peers.rates(list(zip(before, readings(files))), 2.0)
    assert (near.peer, near.flows, far.peer, far.flows) == (NEAR, 2, FAR, 1)
    assert (near.out_gbit, near.in_gbit, near.retransmits) == (1.0, 0.0, 2.0)
    waits = near.ack_wait, near.window_wait, near.device_wait, near.receive_wait
    assert waits == (1.0, 0.5, 0.25, 0.1)
    assert (near.rtt_ms, near.min_rtt_ms, near.receive_p99) == (3.0, 0.05, None)
    assert near.send_p99 == 2**21 / 1e9
    assert (far.out_gbit, far.ack_wait, far.send_p99) == (0.0, 0.0, None)
    header, first, _ = top_peers.table([near, far])
    assert dict(zip(header.split(), first.split()))["PEER"] == NEAR
    assert first.split()[-6:] == ["1.00", "0.50", "0.25", "0.10", "2.1", "-"]


def test_flow_that_is_new_or_closed_does_no_harm(files: list[_engine.StatFile]) -> None:
    publish(files[0], 0, NEAR, 5)
    before = readings(files)
    files[0].flow(0)
    publish(files[0], 1, FAR, 2)
    (far,) = top_peers.rates(list(zip(before, readings(files))), 1.0)
    assert (far.peer, far.flows, far.out_gbit) == (FAR, 1, 2.0)


def test_stalls_of_a_process_are_shown(files: list[_engine.StatFile]) -> None:
    """They tell a busy or stopped process from a slow network."""
    before = readings(files)
    files[0].set(0, [one["name"] for one in _tables.counters()].index("poll_stalls"), 3)
    found = rates(before[0], readings(files)[0], 2.0)
    assert found.stalls == 1.5 and " 1.5 " in line(found)


@pytest.mark.parametrize(
    ("args", "peers"),
    [
        ([], [NEAR, FAR]),
        (["--peer", "10.0.10.0/24"], [FAR]),
        (["--device", "nic1"], [NEAR]),
        (["--device", "nic1", "--peer", FAR], []),
    ],
)
def test_peers_are_chosen(files: list[_engine.StatFile], args: list[str], peers: list[str]) -> None:
    publish(files[0], 0, FAR, 1)
    publish(files[0], 1, NEAR, 1)
    publish(files[1], 0, NEAR, 1)
    command = ["--by-peer", "-n", "1", "-d", "0.1", *args]
    shown = json.loads(CliRunner().invoke(top, [*command, "--json"]).stdout)
    assert shown["schema"] == "harp.top.peers/1"
    assert [one["peer"] for one in shown["peers"]] == peers
    lines = CliRunner().invoke(top, command).stdout.splitlines()
    assert lines[0].startswith("PEER ") and len(lines) == 1 + max(1, len(peers))
    assert peers or lines[1].startswith("no process with HARP and such a job, peer or NIC ran here")


def test_order_of_processes_is_refused(folders: Path) -> None:
    done = CliRunner().invoke(top, ["--by-peer", "--sort", "out"])
    assert done.exit_code == 2 and "--sort orders processes" in done.output
