# SPDX-License-Identifier: Apache-2.0
"""The demo with small messages: every check holds, and each detects its fault."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

from tools.hosts.lab import Lab, LabError
from tools.hosts.ranks import wait_until
from tools.measure.carriers import Carriers
from tools.measure.demo import Row, check_row, rows
from tools.measure.iperf import serve
from tools.measure.kernel_stream import KernelStream
from tools.measure.kernel_talk import TOO_SLOW_S, KernelTalk
from tools.measure.records import make_record
from tools.measure.runner import HarpPacket, HarpXdp, KernelTcp, has_xdp
from tools.measure.runner import Transport as AnyTransport


def demo(folder: Path, *options: str) -> Tuple[int, Dict[str, Any]]:
    """The exit status and the document of a run with messages up to 4 KiB."""
    path = folder / "out.json"
    command = [sys.executable, "-m", "tools.measure.demo", "--last", "4096", "--json", str(path)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=110)
    assert path.is_file(), done.stdout + done.stderr
    return done.returncode, json.loads(path.read_text())


def failed(document: Dict[str, Any]) -> List[str]:
    return [f"{check['name']}: {check['text']}" for check in document["checks"] if not check["ok"]]


@pytest.mark.slow
def test_every_check_passes(tmp_path: Path) -> None:
    status, document = demo(tmp_path)
    assert (status, failed(document)) == (0, [])
    seen = {
        (r["wire"], r["transport"], r["address"], r["api"], r["nranks"])
        for r in document["records"]
    }
    for address in ("kernel", "own"):
        assert ("veth-1500", "harp-packet", address, 4, 2) in seen
        assert ("veth-1500", "harp-packet", address, 12, 2) in seen
    assert ("veth-1500-bridge", "harp-packet", "kernel", 12, 4) in seen
    for link in ("vhost-1500", "vhost-tso"):
        assert (link, "harp-ethdev", "own", 12, 2) in seen
    expected = {"harp-packet", "harp-ethdev", "kernel-tcp"}
    if has_xdp():
        expected.add("harp-xdp")
        for hosts, wire in ((2, "veth-1500"), (4, "veth-1500-bridge")):
            assert {(wire, "harp-xdp", one, 12, hosts) for one in ("kernel", "own")} <= seen
    assert {one[1] for one in seen} == expected


@pytest.mark.slow
def test_injected_wrong_byte_fails_checks(tmp_path: Path) -> None:
    status, document = demo(tmp_path, "--inject-wrong")
    assert status == 1
    wrong = [check for check in document["checks"] if check["name"].endswith("wrong=0")]
    assert len(wrong) == len(rows()) >= 10 and not any(check["ok"] for check in wrong)


def row(transport: AnyTransport, wrong: int = 0, **changes: Any) -> Row:
    """A correct row, with `changes` to its carriers."""
    sound: Dict[str, Any] = {
        "kernel_segments": [10, 10],
        "kernel_resets": [0, 0],
        "control_segments": [10, 10],
        "control_bytes": 100,
        "data_bytes": 1 << 30,
        "interface_bytes": 1 << 30,
    }
    return Row(2, transport, [make_record(size=8, wrong=wrong)], Carriers(**{**sound, **changes}))


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({}, None),
        ({"wrong": 1}, "wrong=0"),
        ({"kernel_segments": [10, 11]}, "TcpOutSegs"),
        ({"kernel_segments": [9, 10]}, "TcpOutSegs"),
        ({"data_bytes": 100}, "capture"),
    ],
)
def test_each_check_of_a_row_fails_for_its_reason(change: Dict[str, Any], check: str) -> None:
    bad = [one.name for one in check_row(row(HarpPacket(), **change)) if not one.ok]
    assert [name for name in bad if check and check in name] == bad
    assert len(bad) == (1 if check else 0)


@pytest.mark.parametrize(
    ("change", "talk", "received", "check"),
    [
        ({"data_bytes": 0}, (9, 0.1), 1, None),
        ({"wrong": 1}, (9, 0.1), 1, "wrong=0"),
        ({"kernel_segments": [10, 11]}, (9, 0.1), 1, "TcpOutSegs"),
        ({"interface_bytes": 100}, (9, 0.1), 1, "interface"),
        ({"interface_bytes": 240, "control_bytes": 200}, (9, 0.1), 1, "interface"),
        ({}, (0, 0.0), 1, "the kernels' own TCP"),
        ({}, (9, TOO_SLOW_S), 1, "the kernels' own TCP"),
        ({}, (9, 0.1), 0, "iperf3"),
    ],
)
def test_each_check_of_an_xdp_row_fails_for_its_reason(
    change: Dict[str, Any], talk: Tuple[int, float], received: int, check: str
) -> None:
    made = row(HarpXdp(), **change)
    made.talk = KernelTalk.__new__(KernelTalk)
    made.talk.trips, made.talk.longest_s = talk
    made.stream = KernelStream.__new__(KernelStream)
    made.stream.runs, made.stream.received = 1, received
    bad = [one.name for one in check_row(made) if not one.ok]
    assert [name for name in bad if check and check in name] == bad
    assert len(bad) == (1 if check else 0)


def test_kernel_talk_counts_round_trips_and_notices_a_break() -> None:
    with Lab() as lab:
        with KernelTalk(lab) as talk:
            wait_until(lambda: lab.hosts[1].counter("TcpInSegs") > 10, 20, "no round trips")
        assert talk.trips > 1 and 0 < talk.longest_s < TOO_SLOW_S
        with pytest.raises(LabError, match="the connection ended"), KernelTalk(lab):
            lab.hosts[1].end_processes()
            time.sleep(0.1)


def iperfs(lab: Lab) -> List[Any]:
    """The processes of iperf3 that run in a lab."""
    return [p for host in lab.hosts for p in host.processes if p.poll() is None]


def test_kernel_stream_counts_bytes_and_notices_a_failure() -> None:
    with Lab() as lab:
        with KernelStream(lab) as stream:
            pass
        assert stream.runs == 1 and 0 < stream.received <= 1 << 20
        assert not iperfs(lab)
        serve(lab.hosts[1])  # has the port
        with pytest.raises(LabError, match="stream: iperf3 .* does not listen"), KernelStream(lab):
            pass


def test_kernel_stream_ends_with_an_interrupted_measurement() -> None:
    with Lab() as lab:
        with pytest.raises(KeyboardInterrupt), KernelStream(lab):
            wait_until(lambda: len(iperfs(lab)) == 2, 20, "iperf3 does not run")
            raise KeyboardInterrupt
        assert not iperfs(lab)


def test_kernel_tcp_row_must_count_segments() -> None:
    assert [one.ok for one in check_row(row(KernelTcp(), kernel_segments=[99, 99]))] == [True, True]
    assert [one.ok for one in check_row(row(KernelTcp()))] == [True, False]


def test_failed_row_fails_check() -> None:
    bad = Row(2, HarpPacket(), failure="rank 0 ended with 1")
    assert [(one.ok, one.text) for one in check_row(bad)] == [(False, "rank 0 ended with 1")]
