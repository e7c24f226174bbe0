# SPDX-License-Identifier: Apache-2.0
"""The fault port's effects on frames between the two ends of a wire."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from port_probe import ETHERNET, Frame, PortError, Probe, Received, checksum_ok, sequence_of

A, B = "10.1.0.1", "10.1.0.2"
MSS = 1448

Make = Callable[..., Probe]
Pair = Callable[..., "tuple[Probe, Probe]"]


@pytest.fixture
def pair(probe: Make, tmp_path: Path) -> Pair:
    """Makes (sender, receiver); each end's device may be wrapped."""

    def make(tx: str = "", rx: str = "") -> tuple[Probe, Probe]:
        ends = []
        for spec, address in ((tx, A), (rx, B)):
            one = probe()
            device = f"wire:{tmp_path}/w"
            one.open(f"fault:{spec}|{device}" if spec else device, address=f"{address}/24")
            ends.append(one)
        return ends[0], ends[1]

    return make


def frame(number: int = 0, payload: bytes = b"", **changes: object) -> Frame:
    args: dict[str, object] = {"src": A, "dst": B, "sport": 1000, "dport": 2000, "seq": number}
    args.update(changes)
    return Frame(payload=payload, **args)  # type: ignore[arg-type]


def exchange(ends: tuple[Probe, Probe], count: int, payload: bytes = b"") -> list[Received]:
    """Sends frames 0 to count - 1. Returns the received ones."""
    a, b = ends
    got: list[Received] = []
    for number in range(count):
        a.send(frame(number, payload), flush=number % 16 == 15)
        if number % 200 == 199:
            got += b.receive(10000, 0)
    a.do("flush 0")
    while more := b.receive(10000, 0.05):
        got += more
    return got


def numbers(frames: list[Received]) -> list[int]:
    return [sequence_of(one.data) for one in frames]


def within(count: int, probability: float, seen: int) -> bool:
    """Whether `seen` is within five standard deviations of the expected number."""
    spread = 5 * (count * probability * (1 - probability)) ** 0.5
    return abs(seen - count * probability) <= spread


@pytest.fixture(params=["tx", "rx"])
def side(request: pytest.FixtureRequest) -> Callable[[str], tuple[str, str]]:
    """Puts a spec on the sender's or on the receiver's port."""
    if request.param == "tx":
        return lambda spec: (spec, "")
    return lambda spec: ("", spec + ",side=rx")


Side = Callable[[str], "tuple[str, str]"]


def test_empty_spec_changes_no_frame(pair: Pair) -> None:
    ends = pair("seed=1", "side=both")
    assert numbers(exchange(ends, 300)) == list(range(300))
    assert ends[0].info["max_frame"] == 1514, "segments are cut, so that faults apply to each frame"
    assert ends[0].info["offloads"] & 2 == 0
    assert "fault (seed=1) over wire" in ends[0].info["summary"]


def test_drop_loses_expected_share(pair: Pair, side: Side) -> None:
    got = numbers(exchange(pair(*side("drop=0.1,seed=3")), 2000))
    assert got == sorted(set(got))
    assert within(2000, 0.1, 2000 - len(got))


def test_drop_burst_loses_runs(pair: Pair, side: Side) -> None:
    got = numbers(exchange(pair(*side("drop=0.01,drop_burst=5,seed=3")), 2000))
    lost = sorted(set(range(2000)) - set(got))
    runs = [n for n in lost if n - 1 not in lost]
    assert runs and all(set(range(n, min(n + 5, 2000))) <= set(lost) for n in runs)


def test_duplicate_repeats_expected_share(pair: Pair, side: Side) -> None:
    got = numbers(exchange(pair(*side("duplicate=0.1,seed=4")), 2000))
    assert set(got) == set(range(2000))
    assert within(2000, 0.1, len(got) - 2000)


def test_reorder_delays_expected_share(pair: Pair, side: Side) -> None:
    got = numbers(exchange(pair(*side("reorder=0.05/4,seed=5")), 2000))
    assert sorted(got) == list(range(2000))
    late = [i for i, n in enumerate(got) if any(m > n for m in got[max(0, i - 8) : i])]
    assert within(2000, 0.05, len(late))
    for i in late:
        assert 1 <= sum(m > got[i] for m in got[:i]) <= 8, "a frame must be overtaken by about four"


def test_last_reordered_frame_is_released(pair: Pair) -> None:
    a, b = pair("reorder=1/1000")
    a.send(frame(1))
    assert not b.receive(1, 0)
    time.sleep(0.02)
    a.do("flush 0")
    assert len(b.receive()) == 1


@pytest.mark.parametrize("size", [0, 1, 500, MSS])
def test_corrupt_flips_one_detectable_bit(pair: Pair, side: Side, size: int) -> None:
    """Every frame differs in one bit and is not marked as checked. Its checksum detects the bit."""
    payload = os.urandom(size)
    frames = exchange(pair(*side("corrupt=1")), 40, payload)
    assert len(frames) == 40
    for number, got in enumerate(frames):
        assert not got.good
        sent = bytes(frame(number, payload, complete=True))
        assert len(got.data) == len(sent) and got.data[:ETHERNET] == sent[:ETHERNET]
        flipped = int.from_bytes(got.data, "big") ^ int.from_bytes(sent, "big")
        assert bin(flipped).count("1") == 1
        header = got.data[ETHERNET : ETHERNET + 20]
        args = sum(int.from_bytes(header[i : i + 2], "big") for i in range(0, 20, 2))
        assert args % 0xFFFF or not checksum_ok(got.data)


def test_corrupt_changes_only_expected_share(pair: Pair, side: Side) -> None:
    got = exchange(pair(*side("corrupt=0.1,seed=9")), 1000, b"payload!")
    assert len(got) == 1000
    assert within(1000, 0.1, sum(not one.good for one in got))
    assert all(one.data == bytes(frame(n, b"payload!")) for n, one in enumerate(got) if one.good)


def test_corrupt_frame_does_not_look_incomplete(pair: Pair, side: Side) -> None:
    """The complete checksum of one payload in 65536 is the one of a frame that is incomplete."""
    at = slice(ETHERNET + 36, ETHERNET + 38)  # of the checksum
    payloads = (n.to_bytes(2, "big") + bytes(1000) for n in range(1 << 16))
    chosen, incomplete = next(
        (payload, bytes(frame(0, payload)))
        for payload in payloads
        if bytes(frame(0, payload, complete=True)) == bytes(frame(0, payload))
    )
    ends = pair(*side("corrupt=1"))
    ends[0].send(frame(0, chosen))
    (got,) = ends[1].receive()
    assert got.data[at] != incomplete[at] and not checksum_ok(got.data)


def test_merged_segment_is_corrupted_on_receipt(pair: Pair) -> None:
    """The checksum covers the merged segment."""
    a, b = pair("", "corrupt=1,side=rx")
    a.send(frame(0, bytes(40000)), segment=MSS)
    (got,) = b.receive()
    assert not got.good and got.segment == MSS and not checksum_ok(got.data)


def test_delay_holds_frames(pair: Pair, side: Side) -> None:
    ends = pair(*side("delay_us=50000"))
    begin = time.monotonic()
    for number in range(5):
        ends[0].send(frame(number))
    got: list[Received] = []
    while len(got) < 5 and time.monotonic() < begin + 20:
        ends[0].do("flush 0")
        got += ends[1].receive(5, 0)
        assert not got or time.monotonic() - begin >= 0.05
    assert numbers(got) == list(range(5))


@pytest.mark.parametrize("spec", ["delay_us=300000", "reorder=1/50,delay_us=300000"])
def test_armed_descriptor_fires_when_held_frame_is_due(pair: Pair, side: Side, spec: str) -> None:
    a, b = pair(*side(spec))
    a.send(frame(1))
    sleeper = a if side("")[1] == "" else b
    sleeper.receive(1, 0)  # the receiver's port takes the frame and delays it
    assert not sleeper.arm(True)
    assert sleeper.wait(20), "the timer did not fire"
    sleeper.arm(False)
    sleeper.do("flush 0")
    assert len(b.receive()) == 1
    assert not sleeper.arm(True) and not sleeper.wait(0.05), "no frame is left"


def test_arm_reports_frames_due(pair: Pair) -> None:
    a, _ = pair("delay_us=1")
    a.send(frame(1), flush=False)
    time.sleep(0.001)
    assert a.arm(True), "arm must report a due frame"


def test_rate_option_limits_throughput(pair: Pair) -> None:
    """100 frames of 1500 bytes at 50 Mbit/s take 24 ms."""
    ends = pair("rate_mbps=50")
    begin = time.monotonic()
    got: list[Received] = []
    for number in range(100):
        ends[0].send(frame(number, bytes(MSS)))
    while len(got) < 100 and time.monotonic() < begin + 20:
        ends[0].do("flush 0")
        got += ends[1].receive(100, 0)
    assert time.monotonic() - begin >= 0.022
    assert numbers(got) == list(range(100))


def test_rate_queue_drops_excess(pair: Pair) -> None:
    """The line sends 83 frames a second, and its queue holds the frames of 50 ms."""
    ends = pair("rate_mbps=1")
    begin = time.monotonic()
    for number in range(600):
        ends[0].send(frame(number, bytes(MSS)), flush=False)
    most = 83.4 * (time.monotonic() - begin + 0.05) + 2
    if most >= 600:
        pytest.skip("the machine took seconds to send 600 frames")
    deadline = time.monotonic() + 0.5
    got: list[Received] = []
    while time.monotonic() < deadline:
        ends[0].do("flush 0")
        got += ends[1].receive(600, 0)
    assert 4 <= len(got) <= most


def test_blackhole_drops_everything(pair: Pair, side: Side) -> None:
    assert exchange(pair(*side("blackhole=1")), 20) == []


def test_same_seed_gives_same_faults(pair: Pair, probe: Make, tmp_path: Path) -> None:
    """A second run loses the same frames; another seed loses others."""
    spec = "drop=0.1,duplicate=0.1,corrupt=0.1"

    def run(name: str, seed: int) -> list[bytes]:
        a, b = probe(), probe()
        a.open(f"fault:{spec},seed={seed}|wire:{tmp_path}/{name}", address=f"{A}/24")
        b.open(f"wire:{tmp_path}/{name}", address=f"{B}/24")
        return [one.data for one in exchange((a, b), 300)]

    first = run("one", 7)
    assert run("two", 7) == first
    assert run("three", 8) != first


def test_side_limits_faults_to_one_direction(pair: Pair) -> None:
    a, b = pair("blackhole=1,side=rx")
    a.send(frame(1))
    assert len(b.receive()) == 1
    b.send(frame(2))
    assert a.receives_no_frame()


def test_port_limits_faults_to_one_port(pair: Pair) -> None:
    a, b = pair("blackhole=1,port=2001,side=both")
    for number, ports in enumerate([(1000, 2000), (1000, 2001), (2001, 1000), (2002, 1)]):
        a.send(frame(number, sport=ports[0], dport=ports[1]))
        b.send(frame(number, sport=ports[0], dport=ports[1]))
    assert numbers(b.receive_all(2)) == [0, 3]
    assert numbers(a.receive_all(2)) == [0, 3]


def test_flow_limits_faults_to_one_flow(pair: Pair) -> None:
    """flow=1 selects the second reserved local port, whatever its number."""
    a, b = pair("blackhole=1,flow=1,side=both")
    ports = [a.reserve() for _ in range(3)]
    for number, port in enumerate(ports):
        a.send(frame(number, sport=port))
        b.send(frame(number, dport=port))
    assert numbers(b.receive_all(2)) == [0, 2]
    assert numbers(a.receive_all(2)) == [0, 2]


def test_control_file_changes_faults(pair: Pair, tmp_path: Path) -> None:
    control = tmp_path / "control"
    a, b = pair(f"port=2000,control={control}")

    def passes(number: int) -> bool:
        time.sleep(0.02)
        a.send(frame(number))
        return numbers(b.receive(1, 0.2)) == [number]

    assert passes(1), "without a file, frames pass"
    control.write_text("blackhole=1\n")
    assert not passes(2)
    a.send(frame(2, dport=2001))
    assert numbers(b.receive()) == [2], "port=2000 of the device still applies"
    control.write_text("blackhole=1, port=2001\n")
    assert passes(3), "the file must override the device's spec"
    control.write_text("blackhole=1, nonsense=1\n")
    assert passes(4), "a wrong text must not change the faults"
    control.write_text("blackhole=1")
    assert not passes(5)
    control.unlink()
    assert passes(6)


def test_order_is_kept_when_the_delay_ends(pair: Pair, side: Side, tmp_path: Path) -> None:
    control = tmp_path / "control"
    control.write_text("delay_us=100000")
    a, b = pair(*side(f"control={control}"))
    a.send(frame(1))
    b.receive(1, 0)
    control.write_text("")
    time.sleep(0.02)
    a.send(frame(2))
    got: list[Received] = []
    deadline = time.monotonic() + 20
    while len(got) < 2 and time.monotonic() < deadline:
        a.do("flush 0")
        got += b.receive(2, 0)
    assert numbers(got) == [1, 2]


def test_large_segments_pass_with_tso(pair: Pair) -> None:
    ends = pair("tso=1,drop=0.5,seed=2")
    assert ends[0].info["max_frame"] == 65549 and ends[0].info["offloads"] == 15
    for number in range(20):
        ends[0].send(frame(number, bytes(60000)), segment=MSS)
    got = ends[1].receive(20, 0.2)
    assert 0 < len(got) < 20 and all(one.segment == MSS for one in got)


def test_queues_have_independent_faults(probe: Make, tmp_path: Path) -> None:
    a, b = probe(), probe()
    a.open(f"fault:drop=0.5|wire:{tmp_path}/w", 2, f"{A}/24")
    b.open(f"wire:{tmp_path}/w", 2, f"{B}/24")
    fates = []
    for queue in range(2):
        for number in range(64):
            a.send(frame(number, dport=2000 + queue), queue=queue)
        fates.append(numbers(b.receive(64, 0.2, queue=queue)))
    assert fates[0] != fates[1]


def test_faults_can_be_stacked(pair: Pair, probe: Make, tmp_path: Path) -> None:
    a, b = probe(), probe()
    a.open(f"fault:duplicate=1|fault:duplicate=1|wire:{tmp_path}/w", address=f"{A}/24")
    b.open(f"wire:{tmp_path}/w", address=f"{B}/24")
    a.send(frame(1))
    assert len(b.receive_all(4)) == 4


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("drop=2", "drop takes a probability"),
        ("drop=nan", "drop takes a probability"),
        ("drop", "drop takes a probability"),
        ("drop=0.1x", "drop takes a probability"),
        ("dorp=0.1", "one of drop, drop_burst"),
        ("drop_burst=0", "1 to 1000000"),
        ("reorder=0.1/0", "0.01/3"),
        ("blackhole=2", "0 or 1"),
        ("side=left", "tx, rx or both"),
        ("port=65536", "a TCP port"),
        ("flow=1024", "0 to 1023"),
        ("seed=-1", "a whole number"),
        ("delay_us=", "microseconds"),
        ("control=", "the path"),
        ("tso=1,corrupt=0.1", "leave tso=1 out"),
    ],
)
def test_invalid_spec_is_refused(probe: Make, tmp_path: Path, spec: str, says: str) -> None:
    with pytest.raises(PortError) as refused:
        probe().open(f"fault:{spec}|wire:{tmp_path}/w", address=f"{A}/24")
    assert refused.value.number == errno.EINVAL
    assert says in str(refused.value)


def test_invalid_device_is_refused(probe: Make) -> None:
    with pytest.raises(PortError, match="write fault:SPEC"):
        probe().open("fault:drop=0.1", address=f"{A}/24")
    with pytest.raises(PortError, match="unknown kind of device"):
        probe().open("fault:drop=0.1|nonsense:x", address=f"{A}/24")
