# SPDX-License-Identifier: Apache-2.0
"""The relay: kernel TCP transfers all bytes through every fault. Both the relay and the kernel
count each fault."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

from tests.tools.transfers import transfer
from tools.hosts.lab import Host, Lab
from tools.hosts.relay import RelayError, RelaySpec

MB = 1_000_000
FRAMES = Path(__file__).with_name("numbered_frames.py")
FAULTS = ("dropped", "duplicated", "reordered", "corrupted")


def frames_of(host: Host) -> Dict[str, int]:
    """The frames that the host's NIC has sent ("tx") and received ("rx")."""
    folder = f"/sys/class/net/{host.interface}/statistics"
    return {way: int(host.read(f"{folder}/{way}_packets")) for way in ("tx", "rx")}


def moved(spec: RelaySpec, total: int, wire: str = "veth-1500") -> Dict[str, Any]:
    """The counts of the relay, the kernels, and the hosts' NICs after a correct transfer from host
    0 to host 1."""
    with Lab(hosts=2, wire=wire, relay=spec) as lab:
        sender, receiver = lab.hosts
        before = sender.counters(), receiver.counters()
        result = transfer(sender, receiver, total)
        after = sender.counters(), receiver.counters()
        nics = [frames_of(host) for host in lab.hosts]
    assert result.received == result.sent
    kernel = {
        name: sum(a.get(name, 0) - b.get(name, 0) for a, b in zip(after, before))
        for name in after[0]
    }
    return {**lab.relay_counts, "kernel": kernel, "nics": nics}


@pytest.mark.parametrize("wire", ["veth-1500", "veth-1500-nooff", "veth-9000"])
def test_relay_without_faults_loses_nothing(wire: str) -> None:
    """Each frame of a host reaches the other host. On a busy machine the relay may get no CPU until
    its ring is full. Its counter of lost frames then explains each missing frame."""
    counts = moved(RelaySpec(), 40 * MB, wire)
    for way, sender, receiver in (("a_to_b", 0, 1), ("b_to_a", 1, 0)):
        for what in (*FAULTS, "overflowed", "unusable"):
            assert counts[way][what] == 0, (way, what)
        assert counts[way]["frames_in"] + counts[way]["kernel_lost"] == counts["nics"][sender]["tx"]
        assert (
            counts[way]["segments"] == counts[way]["frames_out"] == counts["nics"][receiver]["rx"]
        )


def test_large_segments_are_cut_to_mtu() -> None:
    forward = moved(RelaySpec(), 10 * MB)["a_to_b"]
    assert forward["frames_in"] < forward["segments"] / 5, (
        "the host's device has cut the segments already"
    )
    assert forward["segments"] >= 10 * MB // 1448
    assert forward["bytes_out"] / forward["frames_out"] <= 1514


@pytest.mark.parametrize("wire", ["veth-1500", "veth-1500-nooff"])
def test_corrupted_frames_fail_checksum(wire: str) -> None:
    counts = moved(RelaySpec(corrupt=0.002, seed=3), 20 * MB, wire)
    corrupted = counts["a_to_b"]["corrupted"] + counts["b_to_a"]["corrupted"]
    found = sum(
        counts["kernel"][name]
        for name in (
            "TcpInCsumErrors",
            "IpExtInCsumErrors",
            "IpInHdrErrors",
            "IpInAddrErrors",
            "IpExtInTruncatedPkts",
        )
    )
    assert corrupted > 5
    # A flipped byte may hit an IP field that the kernel checks before the checksum. Some kernels
    # count this elsewhere.
    assert 0.9 * corrupted <= found <= corrupted * 1.1


def test_losses_are_recovered_and_counted() -> None:
    counts = moved(RelaySpec(drop=0.01, seed=5), 20 * MB)
    forward = counts["a_to_b"]
    assert 0.006 < forward["dropped"] / forward["segments"] < 0.014
    # The last ACKs of the handshake and of the close carry no data, so nothing repeats them.
    assert counts["kernel"]["TcpRetransSegs"] >= forward["dropped"] - 2


@pytest.mark.slow
def test_drop_burst_loses_expected_share() -> None:
    counts = moved(RelaySpec(drop=0.001, drop_burst=5, seed=6), 20 * MB)
    forward = counts["a_to_b"]
    assert counts["kernel"]["TcpRetransSegs"] >= forward["dropped"] >= 5
    assert 0.002 < forward["dropped"] / forward["segments"] < 0.009


def test_reordering_is_counted_by_kernel() -> None:
    counts = moved(RelaySpec(reorder=0.02, seed=7), 20 * MB)
    assert counts["a_to_b"]["reordered"] > 100
    assert counts["kernel"]["TcpExtTCPOFOQueue"] > 100


def test_duplicates_are_forwarded() -> None:
    counts = moved(RelaySpec(duplicate=0.02, seed=8), 20 * MB)
    forward = counts["a_to_b"]
    assert 0.015 < forward["duplicated"] / forward["segments"] < 0.025
    assert forward["frames_out"] == forward["segments"] + forward["duplicated"]


def arrivals(spec: RelaySpec, count: int = 2000) -> List[int]:
    """Sends `count` numbered frames in order. Returns the numbers in the order of arrival."""
    with Lab(hosts=2, wire="veth-1500-nooff", relay=spec) as lab:
        sender, receiver = lab.hosts
        listening = receiver.popen(
            [sys.executable, FRAMES, "listen", receiver.interface, count],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert listening.stdout and listening.stdout.readline() == "listening\n"
        sender.run([sys.executable, FRAMES, "send", sender.interface, receiver.mac, count])
        numbers, _ = listening.communicate(timeout=100)
    return [int(number) for number in numbers.split()]


@pytest.mark.slow
def test_seed_selects_faulty_frames() -> None:
    spec = RelaySpec(drop=0.02, reorder=0.02, duplicate=0.02, corrupt=0.02, seed=9)
    first = arrivals(spec)
    assert first == arrivals(spec)
    assert first != arrivals(replace(spec, seed=10))


def test_drop_bursts_have_configured_length() -> None:
    arrived = arrivals(RelaySpec(drop=0.01, drop_burst=4, seed=2))
    gaps = [after - before - 1 for before, after in zip(arrived, arrived[1:])]
    lost = [gap for gap in gaps if gap]
    assert len(lost) > 5 and all(gap % 4 == 0 for gap in lost)


def test_reordered_frame_is_late_by_3_to_depth_frames() -> None:
    arrived = arrivals(RelaySpec(reorder=0.01, reorder_depth=12, seed=4))
    assert sorted(arrived) == list(range(2000))
    overtakers = [
        sum(earlier > number for earlier in arrived[:place]) for place, number in enumerate(arrived)
    ]
    late = [count for count in overtakers if count]
    assert len(late) > 10
    assert all(3 <= count <= 12 for count in late)
    assert min(late) < 6 and max(late) > 9


WRAP = 2**32


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("ranges", "retransmitted", "needless"),
    [
        ([(0, 100), (100, 200), (200, 300)], 0, 0),
        ([(0, 100), (100, 200), (100, 200), (200, 300), (0, 100)], 2, 2),
        ([(0, 100), (200, 300), (100, 200)], 1, 0),
        ([(0, 100), (200, 300), (400, 500), (600, 700), (100, 700)], 1, 0),
        ([(0, 100), (200, 300), (400, 500), (200, 300), (400, 500)], 2, 2),
        ([(0, 100), (200, 300), (100, 200), (200, 300), (250, 350), (0, 350)], 4, 2),
        ([(0, 100), (200, 300), (250, 400), (200, 400), (50, 150), (0, 150)], 4, 2),
        ([(100 * n, 100 * n + 50) for n in (*range(50), *range(50))], 50, 50),
        ([(WRAP - 100, WRAP), (WRAP, WRAP + 100), (WRAP - 50, WRAP + 50)], 1, 1),
    ],
    ids=["in order", "again", "a hole filled", "holes filled at once", "behind holes",
         "more than was known", "ranges that overlap", "only holes", "past the end of numbers"],
)  # fmt: skip
def test_retransmissions_and_needless_ones_are_counted(
    ranges: List[Tuple[int, int]], retransmitted: int, needless: int
) -> None:
    with Lab(hosts=2, wire="veth-1500-nooff", relay=RelaySpec()) as lab:
        sender, receiver = lab.hosts
        args = [f"{begin}:{end}" for begin, end in ranges]
        sender.run([sys.executable, FRAMES, "bytes", sender.interface, receiver.mac, *args])
        counts = lab.impair(RelaySpec())["a_to_b"]
    assert (counts["retransmitted"], counts["needless"]) == (retransmitted, needless)


def test_retransmissions_match_losses() -> None:
    """The kernel retransmits each lost frame. Other retransmissions are needless."""
    forward = moved(RelaySpec(drop=0.02, reorder=0.02, seed=12), 10 * MB)["a_to_b"]
    assert forward["needless"] > 0, "there were no needless retransmissions to test"
    repaired = forward["retransmitted"] - forward["needless"]
    assert forward["dropped"] * 0.95 - 3 <= repaired <= forward["dropped"] * 1.05 + 3


def test_relay_duplicate_is_no_retransmission() -> None:
    forward = moved(RelaySpec(duplicate=0.05, seed=13), 5 * MB)["a_to_b"]
    assert forward["duplicated"] > 100
    # On a busy machine, the kernel retransmits some.
    assert forward["needless"] <= forward["retransmitted"] < forward["duplicated"] / 2


def test_corrupted_frame_counts_as_not_delivered() -> None:
    forward = moved(RelaySpec(corrupt=0.02, seed=14), 5 * MB, "veth-1500-nooff")["a_to_b"]
    assert forward["corrupted"] > 30
    assert forward["needless"] < forward["corrupted"] / 2


def test_faults_can_be_changed_at_run_time() -> None:
    with Lab(hosts=2, relay=RelaySpec(drop=1.0)) as lab:
        sender, receiver = lab.hosts
        args = [sys.executable, FRAMES, "send", sender.interface, receiver.mac, "20"]
        sender.run(args)
        counts = [lab.impair(RelaySpec())["a_to_b"]]
        sender.run(args)
        counts.append(lab.impair(RelaySpec(drop=1.0))["a_to_b"])
    assert [one["dropped"] for one in counts] == [20, 0]
    assert counts[1]["frames_out"] >= 20


def test_last_reordered_frame_is_released() -> None:
    assert sorted(arrivals(RelaySpec(reorder=1.0), 8)) == list(range(8))


def test_rate_and_delay_are_kept() -> None:
    spec = RelaySpec(rate_mbps=100, delay_us=2000)
    with Lab(hosts=2, relay=spec) as lab:
        sender, receiver = lab.hosts
        start = time.monotonic()
        result = transfer(sender, receiver, 5 * MB)
        seconds = time.monotonic() - start
    assert result.received == result.sent
    assert seconds >= 5 * MB * 8 / 100e6


def test_all_faults_together() -> None:
    spec = RelaySpec(drop=0.01, reorder=0.01, duplicate=0.01, corrupt=0.01, seed=11)
    forward = moved(spec, 20 * MB)["a_to_b"]
    for fault in FAULTS:
        assert forward[fault] > 20, fault


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        (RelaySpec(drop=1.5), "drop=1.5"),
        (RelaySpec(drop_burst=0), "drop_burst=0"),
        (RelaySpec(reorder=0.1, reorder_depth=2), "reorder=0.1/2"),
        (RelaySpec(queue=1), "queue=1"),
        (RelaySpec(rate_mbps=-1), "rate_mbps=-1"),
    ],
)
def test_invalid_spec_names_key_and_allowed_values(spec: RelaySpec, key: str) -> None:
    with pytest.raises(RelayError, match=key.split("=")[0] + ".*allowed is"):
        with Lab(hosts=2, relay=spec):
            pass
