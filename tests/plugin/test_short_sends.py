# SPDX-License-Identifier: Apache-2.0
"""A short message is copied when it is sent, and the send is done at once. The receiver gets the
bytes of that moment, whatever happens to the sender's memory and to the frames."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from ends import End, ends_between, sizes
from faulty_wire import Impair, Start, acknowledged_flow

LONGEST = 32 << 10  # bytes of a message that is copied
DRAIN_MS = 2000  # the longest wait of closes for acknowledgements
BLACKHOLE = "blackhole=1,side=both"
SOON_S = 7.0  # on a busy machine; without acknowledgements a link fails after eight seconds
TRIES = 20  # calls of test() in which a send that need not wait is done


def send_and_overwrite(sender: End, size: int) -> None:
    """The send is done soon. Other bytes replace the message then."""
    outcomes = sender.rank.wait(requests=[sender.send(size)], timeout=SOON_S)
    assert sizes(outcomes) == [size]
    sender.rank.fill(buffer=sender.buffer, offset=0, size=size, seed=None)


def done_at_once(end: End, request: int) -> bool:
    """Each call lets the rank's threads work, however busy the machine is."""
    deadline, tries = time.monotonic() + 0.3, 0
    while time.monotonic() < deadline or tries < TRIES:
        if end.rank.test(request=request) is not None:
            return True
        tries += 1
    return False


@pytest.mark.sanitized
@pytest.mark.parametrize("size", [0, 1, 2047, 2048, LONGEST])
def test_short_send_is_done_without_acknowledgement(
    start: Start, impair: Impair, size: int
) -> None:
    sender, receiver = ends_between(*start(), size, seed=3)
    request = receiver.receive(size)
    impair(BLACKHOLE)
    send_and_overwrite(sender, size)
    impair("")
    assert sizes(receiver.rank.wait(requests=[request])) == [size]
    assert receiver.holds(size, 3)


def test_long_send_is_done_when_acknowledged(start: Start, impair: Impair) -> None:
    size = LONGEST + 1
    sender, receiver = ends_between(*start(), size, seed=3)
    request = receiver.receive(size)
    impair(BLACKHOLE)
    sent = sender.send(size)
    assert not done_at_once(sender, sent)
    impair("")
    assert sizes(sender.rank.wait(requests=[sent])) == [size]
    assert sizes(receiver.rank.wait(requests=[request])) == [size]
    assert receiver.holds(size, 3)


@pytest.mark.sanitized
def test_copies_survive_loss_in_any_order_of_sizes(start: Start, impair: Impair) -> None:
    """More bytes than the ring of copies has cross a path that drops frames."""
    draw = random.Random(5)
    lengths = [draw.choice((draw.randrange(64), draw.randrange(LONGEST + 1))) for _ in range(200)]
    sender, receiver = ends_between(*start(), LONGEST)
    impair("drop=0.03,seed=9")
    for first in range(0, len(lengths), 20):
        batch = lengths[first : first + 20]
        for number, size in enumerate(batch, first):
            sender.rank.fill(buffer=sender.buffer, offset=0, size=size, seed=number)
            send_and_overwrite(sender, size)
        for number, size in enumerate(batch, first):
            assert sizes(receiver.rank.wait(requests=[receiver.receive(LONGEST)])) == [size]
            assert receiver.holds(size, number)


def test_ring_of_copies_is_used_again(start: Start, impair: Impair) -> None:
    """Short sends are still done at once after many times the ring's size."""
    sender, receiver = ends_between(*start(), LONGEST, seed=3)
    for _ in range(50):
        request = receiver.receive(LONGEST)
        assert sizes(sender.rank.wait(requests=[sender.send(LONGEST)])) == [LONGEST]
        assert sizes(receiver.rank.wait(requests=[request])) == [LONGEST]
    request = receiver.receive(LONGEST)
    time.sleep(0.3)  # a congestion window that is full of unacknowledged bytes takes no message
    impair(BLACKHOLE)
    send_and_overwrite(sender, LONGEST)
    impair("")
    assert sizes(receiver.rank.wait(requests=[request])) == [LONGEST]


@pytest.mark.sanitized
def test_message_without_room_for_its_copy_is_done_when_acknowledged(
    start: Start, impair: Impair, tmp_path: Path
) -> None:
    """Long messages open the congestion window first. No copy replaces an older one."""
    big, window, sent = 8 << 20, 0, 0
    # A retransmission timeout closes the window, so it must not come while the copies are made.
    sender, receiver = ends_between(*start(HARP_RTO_MIN_US="1000000"), big, seed=3)
    while window < 8 * LONGEST and sent < 10 * big:  # a timeout on a busy machine closes it
        request = receiver.receive(big)
        assert sizes(sender.rank.wait(requests=[sender.send(big)])) == [big]
        assert sizes(receiver.rank.wait(requests=[request])) == [big]
        sent += big
        window = acknowledged_flow(tmp_path / "1", sent).cwnd
    impair(BLACKHOLE)
    count, waiting = 0, None
    while waiting is None and count < 20:
        sender.rank.fill(buffer=sender.buffer, offset=0, size=LONGEST, seed=count)
        sent = sender.send(LONGEST)
        count += 1
        if not done_at_once(sender, sent):
            waiting = sent
    assert waiting is not None and count > 4
    impair("")
    assert sizes(sender.rank.wait(requests=[waiting])) == [LONGEST]
    for number in range(count):
        assert sizes(receiver.rank.wait(requests=[receiver.receive(LONGEST)])) == [LONGEST]
        assert receiver.holds(LONGEST, number)


@pytest.mark.sanitized
def test_message_arrives_after_its_sender_has_closed(start: Start, impair: Impair) -> None:
    sender, receiver = ends_between(*start(), LONGEST, seed=3)
    request = receiver.receive(LONGEST)
    impair(BLACKHOLE)
    send_and_overwrite(sender, LONGEST)
    assert sender.close() < 4000
    impair("")
    assert sizes(receiver.rank.wait(requests=[request])) == [LONGEST]
    assert receiver.holds(LONGEST, 3)


@pytest.mark.slow
def test_closes_share_2_s_of_waiting_for_acknowledgements(start: Start, impair: Impair) -> None:
    """The path stays dead. timeout_ms is four times as long, so it does not end the waits."""
    sender, receiver = start()
    links = [ends_between(sender, receiver, LONGEST, seed=3) for _ in range(4)]
    impair(BLACKHOLE)
    for sends, _ in links:
        send_and_overwrite(sends, LONGEST)
    first, *others = [sends.close() for sends, _ in links]
    assert DRAIN_MS <= first < 2 * DRAIN_MS
    assert sum(others) < DRAIN_MS / 2


@pytest.mark.slow
def test_acknowledgement_gives_closes_their_2_s_again(start: Start, impair: Impair) -> None:
    sender, receiver = start()
    dead, live, last = [ends_between(sender, receiver, LONGEST, seed=3) for _ in range(3)]
    impair(BLACKHOLE)
    send_and_overwrite(dead[0], LONGEST)
    assert dead[0].close() >= DRAIN_MS
    impair("")
    request = live[1].receive(LONGEST)
    send_and_overwrite(live[0], LONGEST)
    assert sizes(receiver.wait(requests=[request])) == [LONGEST]
    time.sleep(0.3)  # the acknowledgement arrives
    live[0].close()
    impair(BLACKHOLE)
    send_and_overwrite(last[0], LONGEST)
    assert DRAIN_MS <= last[0].close() < 2 * DRAIN_MS


def test_finalize_waits_for_acknowledgement(start: Start, impair: Impair) -> None:
    sender, receiver = ends_between(*start(), LONGEST, seed=3)
    request = receiver.receive(LONGEST)
    impair(BLACKHOLE)
    send_and_overwrite(sender, LONGEST)
    sender.close()
    ending = sender.rank.start("finalize")
    time.sleep(0.3)
    assert not ending.done()
    impair("")
    ending.result(timeout=10)
    assert sizes(receiver.rank.wait(requests=[request])) == [LONGEST]
    assert receiver.holds(LONGEST, 3)
