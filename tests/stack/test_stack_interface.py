# SPDX-License-Identifier: Apache-2.0
"""The stack's interface: its deadlines, and determinism."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP


def test_pending_output_sets_next_deadline(dialogue):
    """A caller that follows next_deadline must not leave data unsent."""
    d = dialogue()
    c = d.open_passive()
    c.send(b"x")
    if not d.stack.output:
        assert d.stack.next_deadline() is not None
        assert d.stack.next_deadline() <= d.stack.now
    d.expect(TCP(seq=1) / b"x")


def test_an_idle_stack_has_no_deadline(dialogue):
    d = dialogue()
    c = d.open_passive()
    assert d.stack.next_deadline() is None
    c.send(b"x")
    d.expect(TCP(seq=1) / b"x")
    assert d.stack.next_deadline() is not None
    d.send(TCP(flags="A", seq=1, ack=2))
    assert d.stack.next_deadline() is None


@pytest.mark.parametrize("timestamps", [False, True], ids=["long way", "predicted"])
def test_merged_segments_are_acked_by_gso_size(dialogue, timestamps):
    """The peer's segment size comes from gso_size, not from the length of the merged frame."""
    d = dialogue(timestamps=int(timestamps))
    c = d.open_passive(timestamps=timestamps)
    size = 1448
    d.stack.input(d.build(TCP(seq=1, ack=1) / (b"x" * (3 * size))), size)
    d.expect(TCP(flags="A", ack=1 + 3 * size))  # more than two segments: at once
    assert c.tcp_info()["rcv_mss"] == size
    for i in range(3, 5):
        d.send(TCP(seq=1 + i * size, ack=1) / (b"x" * size))
    d.expect(TCP(flags="A", ack=1 + 5 * size))  # and so for every second one


def test_counters_have_names(dialogue):
    d = dialogue()
    d.open_passive()
    counters = d.stack.counters()
    assert counters["tcp_passive_opens"] == counters["tcp_established"] == 1


def test_the_same_calls_give_the_same_frames(stack):
    def run():
        s = stack(seed=(9, 9))
        s.advance(10**12)
        for port in range(1, 10):
            s.socket().connect_ex(("192.0.2.2", port))
        for step in range(1, 20):
            s.advance(10**12 + step * 10**9)
        return s.take()

    assert run() == run()


def test_stacks_are_created_and_destroyed_repeatedly(stack):
    for _ in range(200):
        s = stack()
        s.advance(10**12)
        listener = s.socket()
        listener.bind(("192.0.2.1", 80))
        listener.listen(4)
        s.socket().connect_ex(("192.0.2.2", 80))
