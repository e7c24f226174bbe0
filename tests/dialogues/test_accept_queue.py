# SPDX-License-Identifier: Apache-2.0
"""A full accept queue: peers retransmit, and no connection is reset.

A listener keeps one connection more than its backlog says, as Linux does.
"""

from __future__ import annotations

from scapy.layers.inet import TCP

BACKLOG = 2


def begin(d, port):
    """A peer's SYN, and its answer."""
    d.send(TCP(sport=port, flags="S", seq=0, options=[("MSS", 1460)]))
    d.expect(TCP(dport=port, flags="SA", seq=0, ack=1))


def complete(d, port):
    d.send(TCP(sport=port, flags="A", seq=1, ack=1))
    d.silence()


def full_listener(d, *waiting):
    """A listener whose queue is full, and peers whose handshakes began while there was room."""
    listener = d.listen(80, backlog=BACKLOG)
    for port in range(1001, 1001 + BACKLOG):
        begin(d, port)
        complete(d, port)
    last = 1001 + BACKLOG
    begin(d, last)
    for port in waiting:
        begin(d, port)
    complete(d, last)
    return listener


def test_full_accept_queue_drops_third_handshake_ack(either):
    d = either()
    listener = full_listener(d, 2001)
    complete(d, 2001)  # no reset
    d.send(TCP(sport=2001, flags="PA", seq=1, ack=1) / b"again")
    d.silence(during=100)  # longer than an acknowledgement is put off
    accepted = [d.accept(listener)]
    d.send(TCP(sport=2001, flags="PA", seq=1, ack=1) / b"again")
    d.expect(TCP(dport=2001, flags="A", seq=1, ack=6), within=60)
    accepted += [d.accept(listener) for _ in range(BACKLOG + 1)]
    assert accepted[-1].recv(100) == b"again"


def test_full_accept_queue_retransmits_syn_ack(either):
    d = either()
    listener = full_listener(d, 2001)
    complete(d, 2001)
    d.expect(TCP(dport=2001, flags="SA", seq=0, ack=1), within=1200)
    d.accept(listener)
    d.send(TCP(sport=2001, flags="A", seq=1, ack=1))
    for _ in range(BACKLOG + 1):
        d.accept(listener)


def test_full_accept_queue_drops_syn(either):
    d = either()
    listener = full_listener(d)
    d.send(TCP(sport=2001, flags="S", seq=0, options=[("MSS", 1460)]))
    d.silence(during=100)
    d.accept(listener)
    begin(d, 2001)
