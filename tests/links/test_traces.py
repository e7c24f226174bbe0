# SPDX-License-Identifier: Apache-2.0
"""A link that fails leaves a trace with the events of its flows."""

from __future__ import annotations

from collections.abc import Callable

from jobs import over

from harp.observe import trace
from tools.hosts.jobs import Joint, all_reduce, job

SENDS = {"connect", "established", "chunk_out", "send_done", "retransmit", "rto"}
RECEIVES = {"accept", "chunk_in", "receive_done"}


@over("join,", ("wire",))
def test_failed_link_writes_trace(join: Callable[..., Joint]) -> None:
    joint = join(flows=2, timeout_ms=1500)
    with job(joint.sites, joint.host, all_reduce("4M", 10_000_000, 1)) as running:
        joint.impair("blackhole=1,side=both")
        assert running.finish(20) == [1, 1]
    ports: list[set[tuple[object, object]]] = []  # of each rank: connected, accepted
    for site in joint.sites:
        (path,) = site.run_folder.glob("*.trace")
        found = trace.read(path)
        assert "timed out" in found.reason or "failed" in found.reason
        events = {record.event for record in found.records}
        assert events >= SENDS | RECEIVES | {"poll", "hello"}, SENDS - events
        (hello, *_) = [one for one in found.records if one.event == "hello"]
        assert hello.values["epoch"] == 0
        times = [one.time_ns for one in found.records]
        assert times == sorted(times)
        connects = [one for one in found.records if one.event == "connect"]
        accepts = [one for one in found.records if one.event == "accept"]
        ports.append({(one.flow, one.values["peer_port"]) for one in connects})
        ports.append({(one.values["peer_port"], one.flow) for one in accepts})
    assert ports[1] and ports[1] <= ports[2], "what one rank accepts, the other has opened"
    assert ports[3] and ports[3] <= ports[0]


@over("join,", ("wire",))
def test_trace_names_flow_that_closed(join: Callable[..., Joint]) -> None:
    """On the receiver, too, whose flows use the listener's port."""
    joint = join(flows=2, timeout_ms=1500)
    sendrecv = ["sendrecv", *all_reduce("4M", 10_000_000, 1)[1:]]
    with job(joint.sites, joint.host, sendrecv, flowing=0) as running:
        running.await_count(1, "messages_in", 8, 20)
        joint.impair("blackhole=1,side=both")
        assert running.finish(20) == [1, 1]
    (path,) = joint.sites[1].run_folder.glob("*.trace")
    records = trace.read(path).records
    opened = {one.flow for one in records if one.event in ("accept", "connect")}
    closed = [one.flow for one in records if one.event == "closed"]
    assert closed and set(closed) <= opened
