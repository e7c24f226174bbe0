# SPDX-License-Identifier: Apache-2.0
"""All listeners together have a limit of half-open connections: a flood leaves places for others
and for active opens."""

from __future__ import annotations

import errno

import pytest
from many_hosts import address, dotted, make_small_stack, segment

from harp.testing._flow import Flow, FlowStack
from harp.testing.frames import ACK, FIN, RST, SYN

LISTENERS = 17
PER_MS = 2  # spoofed SYNs
MS = 10**6


def tell(stack: FlowStack, frame: bytes) -> list[bytes]:
    """TCP headers of the answers to the host that the frame claims to be from."""
    stack.receive(frame[14:], b"", 0, True)
    stack.flush()
    return [out.data[20:] for out in stack.take() if out.data[16:20] == frame[26:30]]


def number(tcp: bytes) -> int:
    return int.from_bytes(tcp[4:8], "big")


def shake(stack: FlowStack, host: int, sport: int, dport: int = 80) -> None:
    """A handshake that must end well, with whatever the SYN is answered by."""
    (answer,) = tell(stack, segment(host, sport, SYN, 0, 0, dport=dport))
    assert answer[13] == SYN | ACK
    ack = (number(answer) + 1) & 0xFFFFFFFF
    assert tell(stack, segment(host, sport, ACK, 1, ack, dport=dport)) == []


def connect(stack: FlowStack, host: int, port: int) -> Flow:
    """Opens a connection from here. It must be established."""
    flow = stack.connect(dotted(host), port)
    stack.flush()
    (syn,) = (out.data[20:] for out in stack.take() if out.data[16:20] == address(host))
    sport = int.from_bytes(syn[0:2], "big")
    tell(stack, segment(host, port, SYN | ACK, 5, (number(syn) + 1) & 0xFFFFFFFF, dport=sport))
    assert flow.established
    return flow


def test_flood_on_many_listeners_does_not_block_others() -> None:
    """2,000 spoofed SYNs a second, as HARP's instance is made: 4096 connections, 256 handshakes
    of each listener. Other SYNs and our active opens are served at once."""
    stack = make_small_stack(link=0, max_connections=4096, packets=1024)
    listeners = [stack.listen(1000 + i, backlog=256) for i in range(LISTENERS)]
    spoofed = 0
    for ms in range(5000):
        stack.advance(stack.now + MS)
        for _ in range(PER_MS):
            tell(stack, segment(10_000 + spoofed % 40_000, 7 + spoofed // 40_000, SYN, 0, 0,
                                dport=1000 + spoofed % LISTENERS))  # fmt: skip
            spoofed += 1
        if ms % 50 == 49:
            shake(stack, 1, 2000 + ms, 1000 + ms % LISTENERS)
            connect(stack, 2, 3000 + ms)
    assert sum(len(listener.accepted) for listener in listeners) == 100
    assert "tcp_listen_drops" not in stack.counters()


def test_flood_on_one_listener_keeps_slow_handshakes() -> None:
    """2,000 spoofed SYNs a second for 256 places: a handshake of 300 ms gets a place or a cookie,
    and none of its segments gets a RST."""
    stack = make_small_stack(link=0, max_connections=4096, packets=1024)
    listener = stack.listen(80, backlog=256)
    waiting: list[tuple[int, int]] = []
    for ms in range(3000):
        stack.advance(stack.now + MS)
        for i in range(PER_MS):
            tell(stack, segment(10_000 + ms, 7 + i, SYN, 0, 0))
        if ms % 50 == 0:
            (answer,) = tell(stack, segment(1, 2000 + ms, SYN, 0, 0))
            waiting.append((2000 + ms, (number(answer) + 1) & 0xFFFFFFFF))
        if ms % 50 == 0 and ms >= 300:
            sport, ack = waiting.pop(0)
            assert tell(stack, segment(1, sport, ACK, 1, ack)) == []
    assert len(listener.accepted) == 54


def full(**config: object) -> tuple[FlowStack, object]:
    """A stack of 64 connections, of which peers have all that they can get."""
    stack = make_small_stack(link=0, max_connections=64, **config)
    listener = stack.listen(80, backlog=64)
    for host in range(64):
        shake(stack, host, 1000)  # the last eight get cookies, for which there is no place
    assert len(listener.accepted) == 56
    return stack, listener


def test_eighth_of_table_is_reserved_for_active_opens() -> None:
    stack, _ = full()
    for port in range(8):
        connect(stack, 100, 1 + port)
    with pytest.raises(OSError) as refused:
        stack.connect(dotted(100), 50)
    assert refused.value.errno == errno.ENOBUFS


def test_syn_to_full_table_gets_cookie() -> None:
    """It is forgotten until there is a place; what comes before that is not answered by a reset."""
    stack, listener = full()
    (answer,) = tell(stack, segment(100, 1000, SYN, 0, 0))
    assert answer[13] == SYN | ACK
    ack = (number(answer) + 1) & 0xFFFFFFFF
    assert tell(stack, segment(100, 1000, ACK, 1, ack)) == []
    assert stack.counters()["tcp_cookies_out"] == 8 + 1
    listener.accepted[0].abort()
    stack.flush()
    tell(stack, segment(100, 1000, ACK, 1, ack, b"x"))
    assert bytes(listener.accepted[-1].received) == b"x"
    assert len(listener.accepted) == 57


@pytest.mark.parametrize("by_fin", [False, True])
def test_block_of_closing_flow_is_not_reused_in_callback(by_fin: bool) -> None:
    """Its owner may try another connection at once, in the midst of a call: that gets no block
    that is still in use."""
    stack = make_small_stack(link=0, max_connections=1)
    flow = connect(stack, 100, 1)
    refused = []

    def again() -> None:
        flow.then = None
        if by_fin:
            flow.abort()
        with pytest.raises(OSError) as error:
            stack.connect(dotted(100), 50)
        refused.append(error.value.errno)

    flow.then = again
    if by_fin:
        (answer,) = tell(stack, segment(100, 1, ACK, 5, 0, dport=flow.local_port()))
        end = segment(100, 1, FIN | ACK, 6, number(answer), dport=flow.local_port())
    else:
        end = segment(100, 1, RST, 6, 0, dport=flow.local_port())
    tell(stack, end)
    assert refused == [errno.ENOBUFS]
    stack.flush()
    stack.take()
    connect(stack, 100, 51)  # now there is room


def test_active_opens_evict_half_open_connections() -> None:
    """However young they are; the oldest first."""
    stack = make_small_stack(link=0, max_connections=16)
    stack.listen(80, backlog=16)
    for host in range(6):
        shake(stack, host, 1000)
    for host in range(8):
        tell(stack, segment(200 + host, 1000, SYN, 0, 0))
    assert stack.counters()["tcp_connections"] == 14
    for port in range(10):
        connect(stack, 100, 1 + port)
    assert stack.counters()["tcp_half_open_dropped"] == 8
    assert tell(stack, segment(200, 1000, ACK, 1, 1)) == []  # it may have been real


def test_valid_cookie_evicts_half_open_connection() -> None:
    """That peer is there, and the youngest of them may not be."""
    stack = make_small_stack(link=0, max_connections=16)
    listener = stack.listen(80, backlog=16)
    for host in range(6):
        shake(stack, host, 1000)
    for host in range(8):
        tell(stack, segment(200 + host, 1000, SYN, 0, 0))
    shake(stack, 100, 1000)
    assert stack.counters()["tcp_cookies_in"] == 1
    assert stack.counters()["tcp_half_open_dropped"] == 1
    assert len(listener.accepted) == 7


def test_number_of_listeners_is_bounded() -> None:
    """One that is closed makes room, and those that are left are found."""
    stack = make_small_stack(link=0, max_connections=16)
    listeners = [stack.listen(1000 + i) for i in range(32)]
    with pytest.raises(OSError) as refused:
        stack.listen(2000)
    assert refused.value.errno == errno.ENOBUFS
    listeners[7].close()
    stack.listen(2000)
    for number_of_them, port in enumerate((1000, 1031, 2000)):
        shake(stack, number_of_them, 1000, port)
    (answer,) = tell(stack, segment(9, 1000, SYN, 0, 0, dport=1007))
    assert answer[13] & RST


def test_half_open_connections_take_half_of_table() -> None:
    """The rest get cookies while none of them is old; then the oldest makes room."""
    stack = make_small_stack(link=0, max_connections=16)
    for port in (80, 81):
        stack.listen(port, backlog=16)
    for host in range(20):
        tell(stack, segment(200 + host, 1000, SYN, 0, 0, dport=80 + host % 2))
    assert stack.counters()["tcp_connections"] == 8
    assert stack.counters()["tcp_cookies_out"] == 12
    stack.advance(stack.now + 1100 * MS)
    for host in range(3):
        tell(stack, segment(300 + host, 1000, SYN, 0, 0))
    assert stack.counters()["tcp_connections"] == 8
    assert stack.counters()["tcp_half_open_dropped"] == 3
    assert stack.counters()["tcp_cookies_out"] == 12
