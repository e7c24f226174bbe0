# SPDX-License-Identifier: Apache-2.0
"""The window field is scaled if both SYNs carry the option (RFC 7323, 2)."""

from __future__ import annotations

from scapy.layers.inet import TCP

from harp.testing.dialogue import option, payload


def reached(d):
    """How many bytes have been sent, once or more often."""
    return max(p[TCP].seq - 1 + len(payload(p)) for p in d.drain())


def test_peer_window_is_scaled(either):
    d = either(window_scale=7, initial_window=4)
    c = d.open_passive(wscale=3, window=100)
    c.send(b"x" * 2000)
    # The SYN's 100 bytes were not scaled, the acknowledgement's 100 are 800. Linux sends a small
    # window's content in halves, and the second again as a tail probe.
    assert reached(d) == 800


def test_windows_of_simultaneous_open_syns_are_not_scaled(either):
    """Both of the peer's SYNs have a window that is not scaled."""
    d = either(window_scale=7, initial_window=4)
    c = d.connect(80)
    d.expect(TCP(flags="S", seq=0))
    options = [("MSS", 1460), ("WScale", 3)]
    d.send(TCP(flags="S", seq=0, window=100, options=options))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="SA", seq=0, ack=1, window=100, options=options))
    d.expect(TCP(flags="A", seq=1, ack=1))
    c.send(b"x" * 2000)
    if d.who == "linux":
        assert reached(d) > 100  # it scales the second SYN's, against RFC 7323, 2.2
        return
    assert reached(d) == 100
    d.send(TCP(flags="A", seq=1, ack=101, window=100))
    assert reached(d) == 900


def test_window_is_not_scaled_without_peer_option(either):
    d = either(window_scale=7, initial_window=4)
    listener = d.listen(80)
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1460)], window=700))
    assert option(d.expect(TCP(flags="SA", seq=0, ack=1)), "WScale") is None
    d.send(TCP(flags="A", seq=1, ack=1, window=700))
    d.accept(listener).send(b"x" * 2000)
    assert reached(d) == 700
