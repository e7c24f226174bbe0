# SPDX-License-Identifier: Apache-2.0
"""A link that fails leaves a trace with the events of its flows."""

from __future__ import annotations

from collections.abc import Callable

from jobs import over

from harp.observe import trace
from harp.observe.time_sequence import Sequences
from harp.observe.trace_sequence import connections
from tools.hosts.jobs import Joint, all_reduce, job

SENDS = {"connect", "established", "sent", "acked", "chunk_out", "send_done"}
LOSSES = {"retransmit", "rto"}  # of a rank that has sent data just before the path died
RECEIVES = {"accept", "chunk_in", "receive_done"}


@over("join,", ("wire",))
def test_failed_link_writes_trace(join: Callable[..., Joint]) -> None:
    joint = join(flows=2, timeout_ms=1500)
    with job(joint.sites, joint.host, all_reduce("4M", 10_000_000, 1)) as running:
        joint.impair("blackhole=1,side=both")
        assert running.finish() == [1, 1]
    seen: set[str] = set()
    graphs: list[Sequences] = []
    for site in joint.sites:
        (path,) = site.run_folder.glob("*.trace")
        found = trace.read(path)
        assert "timed out" in found.reason or "failed" in found.reason
        events = {record.event for record in found.records}
        assert events >= SENDS | RECEIVES | {"poll", "hello"}, SENDS - events
        seen |= events
        (hello, *_) = [one for one in found.records if one.event == "hello"]
        assert hello.values["epoch"] == 0
        times = [one.time_ns for one in found.records]
        assert times == sorted(times)
        graphs += [one.seen for one in connections(found) if one.seen.ack]
    assert seen >= LOSSES
    assert graphs
    for graph in graphs:
        # New data has no holes, and everything that is acknowledged or sent again was sent.
        assert [high for *_, high in graph.data[:-1]] == [low for _, low, _ in graph.data[1:]]
        assert max(place for _, place in graph.ack) <= graph.data[-1][2]
        assert all(high <= graph.data[-1][2] for *_, high in graph.again + graph.lost)
        assert all(edge >= acked for (_, edge), (_, acked) in zip(graph.edge, graph.ack))
    assert any(graph.lost for graph in graphs) and any(graph.again for graph in graphs)


@over("join,", ("wire",))
def test_traces_name_flow_that_closed_and_its_peer(join: Callable[..., Joint]) -> None:
    """On the receiver, too, whose flows use the listener's port."""
    joint = join(flows=2, timeout_ms=1500)
    sendrecv = ["sendrecv", *all_reduce("4M", 10_000_000, 1)[1:]]
    with job(joint.sites, joint.host, sendrecv, flowing=0) as running:
        running.await_count(1, "messages_in", 8)
        joint.impair("blackhole=1,side=both")
        assert running.finish() == [1, 1]
    sent, received = [
        trace.read(path).records for site in joint.sites for path in site.run_folder.glob("*.trace")
    ]
    opened = {one.flow for one in received if one.event in ("accept", "connect")}
    closed = [one.flow for one in received if one.event == "closed"]
    assert closed and set(closed) <= opened
    connects = {(one.flow, one.values["peer_port"]) for one in sent if one.event == "connect"}
    accepts = {(one.values["peer_port"], one.flow) for one in received if one.event == "accept"}
    assert len(accepts) == 2 and accepts <= connects
