# SPDX-License-Identifier: Apache-2.0
"""The wire port: two ends joined by shared memory."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from port_probe import CHECKSUM_START, Frame, PortError, Probe, arp_request, sequence_of

A, B = "10.1.0.1", "10.1.0.2"
ALL_OFFLOADS = 15
RING = 8 << 20

Make = Callable[..., Probe]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "w")


@pytest.fixture
def ends(probe: Make, path: str) -> tuple[Probe, Probe]:
    a, b = probe(), probe()
    a.open(f"wire:{path}", address=f"{A}/24")
    b.open(f"wire:{path}", address=f"{B}/24")
    return a, b


def frame(payload: bytes = b"", **changes: object) -> Frame:
    return Frame(A, B, 1000, 2000, payload, **changes)  # type: ignore[arg-type]


def test_frames_cross_whole_both_ways(ends: tuple[Probe, Probe]) -> None:
    a, b = ends
    assert a.info["offloads"] == ALL_OFFLOADS and a.info["max_frame"] == 65549
    assert (a.info["mac"][-1], b.info["mac"][-1]) == ("0", "1")
    big = frame(os.urandom(65000))
    for sender, receiver in ((a, b), (b, a)):
        sender.send(big, segment=1448, pieces=7)
        (got,) = receiver.receive()
        assert got.data == bytes(big) and got.segment == 1448 and got.good
        sender.send(frame(b"x", complete=True))
        (got,) = receiver.receive()
        assert not got.good and got.segment == 0


def test_too_long_frame_is_emsgsize(ends: tuple[Probe, Probe]) -> None:
    with pytest.raises(PortError) as refused:
        ends[0].send(bytes(65550))
    assert refused.value.number == errno.EMSGSIZE


def test_ring_wraps_around(ends: tuple[Probe, Probe]) -> None:
    """Records wrap three times around the ring, and end at all positions."""
    a, b = ends
    sent = 0
    number = 0
    while sent < 3 * RING:
        payload = number.to_bytes(4, "big") * (1 + number * 7919 % 16000)
        one = frame(payload, seq=number)
        a.send(one, flush=False)
        (got,) = b.receive()
        assert got.data == bytes(one)
        sent += len(got.data)
        number += 1


def test_full_ring_refuses_then_accepts_again(ends: tuple[Probe, Probe]) -> None:
    a, b = ends
    big = frame(bytes(65000))
    count = 0
    with pytest.raises(PortError) as full:
        while count < 1000:
            a.send(big)
            count += 1
    assert full.value.number == errno.EAGAIN
    assert RING // 65200 - 2 <= count <= RING // 65000
    assert a.count()["full"] == 1
    # The writer sleeps; the reader's next receives wake it.
    assert not a.arm(True)
    assert not a.wait(0.05)
    assert len(b.receive(4)) == 4
    b.receive(1)
    assert a.wait(20)
    a.arm(False)
    a.send(big)


def test_doorbell_wakes_armed_receiver(ends: tuple[Probe, Probe]) -> None:
    a, b = ends
    assert not b.arm(True)
    assert not b.wait(0.05)
    a.send(frame(b"hello"), flush=False)
    assert not b.wait(0.05), "the doorbell rings only at the end of a burst"
    a.do("flush 0")
    assert b.wait(20)
    b.arm(False)
    assert not b.wait(0.05), "the doorbell was not disarmed"
    a.send(frame(b"again"))
    assert not b.wait(0.05), "the doorbell rang for a receiver that does not sleep"
    assert b.arm(True), "arm must report waiting frames"
    assert len(b.receive(2)) == 2


def test_frames_reach_queue_of_their_local_port(probe: Make, path: str) -> None:
    a, b = probe(), probe()
    a.open(f"wire:{path}", 3, f"{A}/24")
    b.open(f"wire:{path}", 3, f"{B}/24")
    for queue in range(3):
        local = b.reserve(queue)
        assert local % 3 == queue and local >= 49152
        for sender in range(3):
            a.send(Frame(A, B, 1000, local, b"to you"), queue=sender)
        assert len(b.receive(3, queue=queue)) == 3
    a.send(arp_request("02:48:41:52:50:00", A, B), queue=1)
    assert all(len(b.receive(1, queue=queue)) == 1 for queue in range(3)), (
        "ARP must reach every queue"
    )


def test_ports_are_reserved_and_released(ends: tuple[Probe, Probe]) -> None:
    a, _ = ends
    local = a.reserve(0, 5000)
    assert local == 5000
    with pytest.raises(PortError) as taken:
        a.reserve(0, 5000)
    assert taken.value.number == errno.EADDRINUSE
    a.release(5000)
    assert a.reserve(0, 5000) == 5000
    assert len({a.reserve() for _ in range(50)}) == 50


def test_configured_range_is_used(probe: Make, path: str) -> None:
    a = probe()
    a.open(f"wire:{path}", address=f"{A}/24", ports="6000-6002")
    assert {a.reserve() for _ in range(3)} == {6000, 6001, 6002}
    with pytest.raises(PortError) as none:
        a.reserve()
    assert none.value.number == errno.EADDRINUSE
    with pytest.raises(PortError) as outside:
        a.reserve(0, 7000)
    assert outside.value.number == errno.EADDRNOTAVAIL


def test_dead_peer_is_replaced(ends: tuple[Probe, Probe], probe: Make, path: str) -> None:
    a, b = ends
    a.send(frame(b"to the dead"))
    b.kill()
    full = 0
    for _ in range(200):  # sends without a peer must not hang
        try:
            a.send(frame(bytes(65000)))
        except PortError as error:
            assert error.number == errno.EAGAIN
            full += 1
    assert full
    heir = probe()
    heir.open(f"wire:{path}", address=f"{B}/24")
    assert heir.info["mac"][-1] == "1", "the new process must get the dead one's end"
    assert heir.receives_no_frame(), "a new end must not receive old frames"
    a.send(frame(b"to the heir", seq=7))
    (got,) = heir.receive()
    assert sequence_of(got.data) == 7
    heir.send(frame(b"back"))
    assert a.receive()


def test_file_is_reused_after_both_ends_are_killed(
    ends: tuple[Probe, Probe], probe: Make, path: str
) -> None:
    for one in ends:
        one.send(frame(b"old"))
        one.kill()
    assert os.path.exists(path)
    a = probe()
    a.open(f"wire:{path}", 2, f"{A}/24")  # also with another number of queues
    assert a.receives_no_frame()


def test_third_end_is_refused(ends: tuple[Probe, Probe], probe: Make, path: str) -> None:
    with pytest.raises(PortError, match="both ends are held") as refused:
        probe().open(f"wire:{path}", address=f"{A}/24")
    assert refused.value.number == errno.EBUSY


def test_last_close_removes_files(ends: tuple[Probe, Probe], path: str) -> None:
    folder = Path(path).parent
    assert sorted(p.name for p in folder.iterdir()) == ["w", "w.0.0", "w.1.0"]
    ends[0].end()
    assert os.path.exists(path), "the other end still holds it"
    ends[1].end()
    assert list(folder.iterdir()) == []


def test_one_process_may_hold_both_ends(probe: Make, path: str) -> None:
    both = probe()
    both.do("use 0")  # the port works
    before = both.descriptors()
    both.open(f"wire:{path}", address=f"{A}/24")
    both.do("use 1")
    both.open(f"wire:{path}", address=f"{B}/24")
    both.send(frame(b"from 1"))
    both.do("use 0")
    assert len(both.receive()) == 1
    both.do("close")
    assert os.path.exists(path)
    both.do("use 1")
    both.do("close")
    assert not os.path.exists(path)
    assert both.descriptors() == before


@pytest.mark.parametrize(
    ("device", "queues", "address", "says"),
    [
        ("wire:{}", 1, "-", "set address"),
        ("wire:", 1, f"{A}/24", "name a file"),
        ("wire:{}", 17, f"{A}/24", "a wire takes 1 to 16"),
        ("wire:/nowhere/w", 1, f"{A}/24", "cannot open the file"),
        ("wirre:{}", 1, f"{A}/24", "packet:, xdp:, dpdk:, wire:, fault:"),
    ],
)
def test_invalid_open_is_refused(
    probe: Make, path: str, device: str, queues: int, address: str, says: str
) -> None:
    with pytest.raises(PortError) as refused:
        probe().open(device.format(path), queues, address)
    assert says in str(refused.value)


def test_different_number_of_queues_is_refused(probe: Make, path: str) -> None:
    probe().open(f"wire:{path}", 2, f"{A}/24")
    with pytest.raises(PortError, match="2 instances and this one 1"):
        probe().open(f"wire:{path}", 1, f"{B}/24")


def test_damaged_file_is_refused(probe: Make, path: str) -> None:
    """A damaged file is refused while an end is held. It would be replaced only without one."""
    a = probe()
    a.open(f"wire:{path}", address=f"{A}/24")
    with open(path, "r+b") as file:
        file.write(b"\0" * 8)
    with pytest.raises(PortError, match="remove it"):
        probe().open(f"wire:{path}", address=f"{B}/24")


def test_record_with_wrong_length_is_dropped(ends: tuple[Probe, Probe], path: str) -> None:
    """A record that claims too many bytes is dropped and counted."""
    a, b = ends
    a.send(frame(b"x" * 100))
    data = Path(path).read_bytes()
    at = data.index(bytes(frame(b"x" * 100))) - 16
    with open(path, "r+b") as file:
        file.seek(at)
        file.write((0x7FFFFFFF).to_bytes(4, "little"))
    assert b.receives_no_frame()
    assert b.count()["lost"] == 1
    a.send(frame(b"honest"))
    assert len(b.receive()) == 1


def test_throughput_over_shared_memory(
    ends: tuple[Probe, Probe], record_property: Callable[[str, object], None]
) -> None:
    """Large segments at full speed. The bound is low, because a waiting sender uses CPU time."""
    a, b = ends
    big = frame(bytes(64000))
    b.start("drain 0 500 0 0")
    time.sleep(0.05)
    command = f"blast 0 600 {big.header_length} 1448 {CHECKSUM_START} 16 {bytes(big).hex()}"
    sent = json.loads(a.do(command))
    arrived = json.loads(b.finish()[1])
    gbit = arrived["bytes"] * 8 / arrived["ms"] / 1e6
    per_cpu = sent["frames"] * 64000 * 8 / sent["cpu_ms"] / 1e6
    record_property("gbit", round(gbit, 1))
    print(f"wire: {gbit:.1f} Gbit/s, {per_cpu:.1f} per CPU-second of the sender")
    assert arrived["frames"] > 0 and per_cpu > 0.5
