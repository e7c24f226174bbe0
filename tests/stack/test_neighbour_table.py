# SPDX-License-Identifier: Apache-2.0
"""The neighbour table: one entry per connection, which a flood cannot replace."""

from __future__ import annotations

import pytest
from many_hosts import PORT, arp, make_small_stack, open_from, segment, tell, transmitted

from harp.testing._flow import FlowStack
from harp.testing.frames import ACK, PSH, SYN

MANY = 4096
SECOND = 10**9


def send_to_each(stack: FlowStack, flows: list, numbers: range) -> list[int]:
    """Sends a byte to each host, and acknowledges it. Returns the hosts that got ARP requests."""
    questions: list[int] = []
    for flow, number in zip(flows, numbers):
        flow.push(b"x")
        stack.flush()
        asked, segments = transmitted(stack)
        questions += asked
        for there, tcp in segments:
            assert there == number
            ack = int.from_bytes(tcp[4:8], "big") + 1
            tell(stack, segment(number, 1000, ACK, 1, ack & 0xFFFFFFFF))
    return questions


def test_neighbour_table_holds_one_entry_per_connection() -> None:
    """Each of 4,096 hosts is asked for once, and none is forgotten while it has a connection."""
    # An eighth of the connections is for our own.
    stack = make_small_stack(max_connections=MANY * 8 // 7 + 8, packets=8192)
    listener = stack.listen(80, backlog=MANY)
    for number in range(MANY):
        open_from(stack, number)
    flows = listener.accepted
    assert len(flows) == MANY
    for _ in range(2):
        assert send_to_each(stack, flows, range(MANY)) == []
    counters = stack.counters()
    assert counters["arp_requests_out"] == MANY
    assert "neighbours_replaced" not in counters


def test_neighbour_of_connection_is_not_evicted() -> None:
    """Ten times as many unknown hosts as the table has places, each of them asked for and there."""
    stack = make_small_stack(max_connections=8)
    listener = stack.listen(80)
    open_from(stack, 0)
    for number in range(1, 3000):
        if number % 200 == 0:
            stack.advance(stack.now + SECOND)  # the questions are limited
        tell(stack, arp(number, 1), segment(number, 1, ACK, 5, 5, dport=81))
        asked, _ = transmitted(stack)
        tell(stack, *(arp(one, 2) for one in asked))
        transmitted(stack)
    assert stack.counters()["neighbours_replaced"] > 2500
    assert send_to_each(stack, listener.accepted, range(1)) == []


def test_incomplete_neighbours_are_evicted_before_reachable() -> None:
    """A host without a connection is known; three times as many as there are places are not."""
    stack = make_small_stack(max_connections=8)
    stray = segment(0, 1, ACK, 5, 5, dport=81)
    tell(stack, arp(0, 1), stray)
    tell(stack, arp(0, 2))
    transmitted(stack)
    tell(stack, *(segment(number, 1, ACK, 5, 5, dport=81) for number in range(1, 800)))
    transmitted(stack)
    tell(stack, stray)
    asked, segments = transmitted(stack)
    assert (asked, [there for there, _ in segments]) == ([], [0])


def test_neighbours_of_closed_connections_are_evicted_first() -> None:
    """The places of connections that are over are found again, the oldest first."""
    stack = make_small_stack(max_connections=8)
    stack.listen(80)
    for number in range(1000):
        first = open_from(stack, number)
        tell(stack, segment(number, 1000, 0x14, 1, (first + 1) & 0xFFFFFFFF))
        assert stack.counters().get("tcp_connections", 0) == 0
        transmitted(stack)
        if number % 200 == 199:
            stack.advance(stack.now + SECOND)
    assert stack.counters()["neighbours_replaced"] == 1000 - 8 - 256


def test_packets_queued_for_arp_use_an_eighth_of_pool() -> None:
    """A flood's answers wait for hosts that are not there; who answers still gets its own."""
    stack = make_small_stack(max_connections=256, packets=64)
    stack.listen(80, backlog=256)
    tell(stack, *(segment(number, 1, SYN, 0, 0) for number in range(200)))
    transmitted(stack)
    assert stack.counters()["packets_used"] == 64 // 8
    assert stack.counters()["arp_queue_drops"] == 200 - 64 // 8
    tell(stack, arp(199, 2), arp(0, 2))
    _, segments = transmitted(stack)
    assert [there for there, _ in segments] == [199]


def test_returning_neighbour_is_resolved_again() -> None:
    """Its connection outlives that it answered nothing for a while, and asks again."""
    stack = make_small_stack()
    listener = stack.listen(80)
    open_from(stack, 7)
    (flow,) = listener.accepted
    stack.advance(stack.now + 61 * SECOND)  # what is known has grown old
    flow.push(b"x")
    stack.flush()
    failed = 0
    for _ in range(40):
        stack.advance(stack.now + SECOND)
        transmitted(stack)
        failed = stack.counters().get("arp_failures", 0)
    assert failed >= 1
    for _ in range(40):
        stack.advance(stack.now + SECOND)
        asked, segments = transmitted(stack)
        if asked:
            assert set(asked) == {7}
            tell(stack, arp(7, 2))
            _, segments = transmitted(stack)
        if segments:
            assert segments[0][1][13] & (PSH | ACK)
            return
    pytest.fail("the connection never asked again")


def test_hosts_that_sent_arp_exceed_the_request_limit() -> None:
    """A job begins: all ask, then all connect. No more than a few of them have to wait a second,
    since more than 256 are asked for at once."""
    stack = make_small_stack(max_connections=1024, packets=8192)
    stack.listen(80, backlog=1024)
    tell(stack, *(arp(number, 1) for number in range(1000)))
    transmitted(stack)
    tell(stack, *(segment(number, 1, SYN, 0, 0) for number in range(1000)))
    asked, _ = transmitted(stack)
    assert len(asked) >= 990


def test_holes_and_absent_neighbours_leave_buffers_for_data_in_order():
    """Strangers store data behind holes, and let frames wait for hosts that do not exist."""
    stack = make_small_stack(max_connections=4096, packets=2048, rcvbuf=1 << 20)
    listener = stack.listen(PORT, backlog=256)
    first = open_from(stack, 1)
    reader = listener.accepted[0]
    reader.limit = 0  # nothing is read yet
    for port in range(2000, 2100):
        other = open_from(stack, 2, sport=port)
        for hole in range(30):
            tell(stack, segment(2, port, ACK, 1002 + 2001 * hole, (other + 1) % 2**32, b"h" * 1400))
        transmitted(stack)
    tell(stack, *(segment(1000 + n, 5000, SYN, 0, 0) for n in range(1000)))
    transmitted(stack)
    data = b"v" * 1400
    for number in range(20):
        tell(stack, segment(1, 1000, ACK, 1 + number * len(data), (first + 1) % 2**32, data))
    assert stack.counters().get("tcp_memory_drops", 0) == 0
    reader.limit = None
    reader.resume()
    assert bytes(reader.received) == data * 20
