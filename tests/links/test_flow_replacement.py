# SPDX-License-Identifier: Apache-2.0
"""A flow on a path that drops all packets gets a new connection, and the job continues. A link
without a working path fails in time. A link to a slow peer does not fail."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from jobs import FULL, over
from ranks import START_S, Link, Rank, connect, wait_until

from harp.observe.statfile import Process
from tools.hosts.jobs import Joint, all_reduce, job

Join = Callable[..., Joint]

FLOWS = 4
ROUNDS = 24 if FULL else 4
PAUSE_S = 1.0 if FULL else 0.1
ALONE_S = 1.0  # seconds until a replacement without other flows to compare with
MOST_S = 2.0  # the same at most
STALL_S = 0.25  # seconds without a poll, which HARP takes for a pause
PAUSES = 12  # three are usual: half of ALONE_S passes between two
TIMEOUT_MS = 3000
SLACK_S = 2.4  # for a busy machine; a second try would end after another TIMEOUT_MS
ENDLESS = 10_000_000


@contextmanager
def linked(joint: Joint) -> Iterator[tuple[Rank, Rank, Link]]:
    """A sender, a receiver, and a link between them that has moved a message."""
    with Rank(joint.sites[0]) as sender, Rank(joint.sites[1]) as receiver:
        sender.init()
        receiver.init()
        link = connect(sender, receiver)
        link.move()
        yield sender, receiver, link


@pytest.mark.slow
@over("join,side", ("wire", "tx"), ("packet", "both"))
def test_flows_are_replaced_one_after_another(join: Join, side: str) -> None:
    joint = join(flows=FLOWS)
    iterations = int(ROUNDS * (PAUSE_S + 1.4) * 8)
    with job(joint.sites, joint.host, all_reduce("8M", iterations, 1)) as running:
        times = []
        for number in range(ROUNDS):
            flow = running.grows(number % FLOWS)
            joint.blackhole(flow, side)
            times.append(running.await_count(0, "flows_replaced", number + 1))
            wait_until(
                lambda: running.sending(0).get(flow.flow, flow).local != flow.local,
                START_S,
                "the old connection is still there",
                running.ranks,
            )
            time.sleep(PAUSE_S)
        joint.impair()
        running.ends_well()
        assert [seen["flows_replaced"] for seen in running.seen] == [ROUNDS, 0]
        print([f"{took:.3f} s" for took in times])
        assert min(times) < ALONE_S


@pytest.mark.quick_cases(1)
@over("join,side", ("wire", "rx"), ("packet", "tx"))
@pytest.mark.parametrize(
    "size, iterations, gbit",
    [
        ("4M", 60, 1.0),
        # More iterations at a higher rate would take minutes on a busy machine.
        pytest.param("16K", 3000, 0.5, marks=(pytest.mark.slow, pytest.mark.sanitized)),
    ],
)
def test_only_flow_is_replaced(
    join: Join, side: str, size: str, iterations: int, gbit: float
) -> None:
    """The path drops one direction for good: the data has arrived without an acknowledgement, or
    has not arrived. The sends of short messages are done before that."""
    joint = join(flows=1)
    with job(joint.sites, joint.host, all_reduce(size, iterations, gbit)) as running:
        joint.blackhole(running.grows(0), side)
        running.await_count(0, "flows_replaced", 1)
        running.ends_well()
        assert [seen["flows_replaced"] for seen in running.seen] == [1, 0]


@pytest.mark.slow
@over("join,", ("wire",))
def test_pauses_do_not_delay_replacement(join: Join) -> None:
    """The sender is stopped again and again, as on a busy host. It never runs for as long as a flow
    without others may make no progress."""
    joint = join(flows=1)
    with job(joint.sites, joint.host, all_reduce("4M", 60, 1)) as running:
        joint.blackhole(running.grows(0), "both")
        pauses = 0
        while running.count(0, "flows_replaced") == 0:
            assert pauses < PAUSES, "each pause begins the wait anew"
            time.sleep(ALONE_S / 2)
            running.ranks[0].signal(signal.SIGSTOP)
            time.sleep(STALL_S)
            running.ranks[0].signal(signal.SIGCONT)
            pauses += 1
        assert running.count(0, "poll_stalls") > 0
        running.ends_well()


@pytest.mark.slow
@over("join,", ("wire",))
def test_long_round_trip_does_not_delay_replacement(join: Join) -> None:
    """The peer has answered late, as from a busy host, and the RTO is long."""
    joint = join(flows=1)
    with job(joint.sites, joint.host, all_reduce("4M", 60, 1)) as running:
        running.grows(0)
        joint.impair("delay_us=1000000,side=tx")

        def has_long_rto() -> bool:
            return running.sending(0)[0].rto_us > 1_000_000

        wait_until(has_long_rto, START_S, "the RTO stays short", running.ranks)
        joint.blackhole(running.sending(0)[0], "both")
        # Eight RTO last 8 s or more.
        assert running.await_count(0, "flows_replaced", 1) < MOST_S + SLACK_S
        running.ends_well()


@pytest.mark.slow
@over("join,", ("wire",))
def test_short_stops_of_slow_receiver_do_not_replace_flow(join: Join) -> None:
    """Its window is full, and it answers late, as on a busy host."""
    joint = join(flows=1)
    with linked(joint) as (sender, receiver, link):
        sender.start("send", link.sends, 12, 4 << 20, 20000)
        for _ in range(4):
            time.sleep(0.03)  # the first probes come soon after the window has closed
            receiver.signal(signal.SIGSTOP)
            time.sleep(0.2)
            receiver.signal(signal.SIGCONT)
            time.sleep(0.2)
        receiver.start("receive", link.receives, 12, 4 << 20, 20000)
        link.finish(20)
        (process,) = joint.sites[0].published()
        assert process.totals["tcp_window_probes"] > 0
        assert process.totals["flows_replaced"] == 0


@pytest.mark.skipif(not FULL, reason="a machine that stands still for a second fails it")
@over("join,", ("wire",))
def test_flow_is_replaced_within_short_timeout(join: Join) -> None:
    joint = join(flows=1, timeout_ms=1000)
    with job(joint.sites, joint.host, all_reduce("4M", 20, 1)) as running:
        joint.blackhole(running.grows(0), "both")
        running.await_count(0, "flows_replaced", 1)
        running.ends_well()


@over("join,flows", ("wire", 1), ("packet", FLOWS))
def test_link_without_working_path_fails_in_time(join: Join, flows: int) -> None:
    """Both sides' requests fail in time, and each log names the peer."""
    joint = join(flows=flows, timeout_ms=TIMEOUT_MS)
    with job(joint.sites, joint.host, all_reduce("4M", ENDLESS, 1)) as running:
        joint.impair("blackhole=1,side=both")
        began = time.monotonic()
        for number, rank in enumerate(running.ranks):
            moment, line = rank.wait_for_line(" failed after ", TIMEOUT_MS / 1e3 + 5)
            print(f"rank {number}: {moment - began:.3f} s: {line}; {rank.warnings}")
            assert line.endswith(": ncclRemoteError")
            assert moment - began < TIMEOUT_MS / 1e3 + SLACK_S
            peer = re.escape(joint.sites[1 - number].address)
            assert rank.warnings
            for warning in rank.warnings:
                assert re.search(rf"HARP: the link (to|from) {peer}:\d+ failed: ", warning)
        assert running.finish() == [1, 1]


@pytest.mark.sanitized
@pytest.mark.slow
@over("join,", ("packet",))
def test_short_outage_of_all_paths_is_survived(join: Join) -> None:
    """All paths fail for a short time. The job continues, whatever HARP tried meanwhile."""
    joint = join(flows=FLOWS, timeout_ms=4 * TIMEOUT_MS)
    with job(joint.sites, joint.host, all_reduce("8M", 100 if FULL else 12, 1)) as running:
        for silence in (0.3, 1.5, 1.1, 2.0) if FULL else (1.2,):
            joint.impair("blackhole=1,side=both")
            time.sleep(silence)
            joint.impair()
            before = running.count(1, "messages_in")
            running.await_count(1, "messages_in", before + 20)
        running.ends_well()


@over("join,", ("packet",))
def test_peer_killed_during_outage_fails_link_in_time(join: Join) -> None:
    """A new connection is being opened then. It is refused or unanswered, like the old one."""
    joint = join(flows=1, timeout_ms=TIMEOUT_MS)
    with job(joint.sites, joint.host, all_reduce("4M", ENDLESS, 1)) as running:
        survivor, victim = running.ranks
        joint.impair("blackhole=1,side=both")
        time.sleep(1.25)  # a second and a tick: the new connection is being tried
        victim.signal(signal.SIGKILL)
        joint.impair()
        began = time.monotonic()
        moment, line = survivor.wait_for_line(" failed after ", TIMEOUT_MS / 1e3 + 5)
        assert line.endswith(": ncclRemoteError")
        assert moment - began < TIMEOUT_MS / 1e3 + SLACK_S
        assert survivor.wait() == 1


@over("join,", ("wire",))
def test_replaced_flow_to_slow_receiver_keeps_received_data(join: Join) -> None:
    """Data received on the old connection but not read yet is not sent again: it moves to the new
    one."""
    joint = join(flows=1)
    with linked(joint) as (sender, receiver, link):
        sender.start("send", link.sends, 24, 2 << 20, 20000)

        def seen() -> Process:
            (process,) = joint.sites[0].published()
            return process

        def new_connection() -> bool:
            return seen().totals["flows_replaced"] > 0

        wait_until(lambda: seen().totals["tcp_window_probes"] > 0, 10, "no probes", [sender])
        (flow,) = wait_until(lambda: seen().flows, 10, "the flow is not published", [sender])
        joint.blackhole(flow, "both")
        wait_until(new_connection, 10, "no new connection", [sender])
        receiver.start("receive", link.receives, 24, 2 << 20, 20000)
        link.finish(20)
        assert sender.warnings == receiver.warnings == []


@pytest.mark.slow
@over("join,flows", ("wire", 2), ("packet", 16))
def test_slow_receiver_does_not_replace_flows(join: Join, flows: int) -> None:
    """A live receiver posts nothing for longer than any timeout. Its windows are full, and with
    many flows its packet memory, too, which is smaller than the windows together."""
    joint = join(flows=flows, timeout_ms=TIMEOUT_MS)

    def memory_drops() -> int:
        (process,) = joint.sites[1].published()
        return int(process.totals["tcp_memory_drops"])

    with linked(joint) as (sender, receiver, link):
        sender.start("send", link.sends, 12, 4 << 20, 20000)
        time.sleep(5 if FULL else 2.5)
        if flows == 16:
            wait_until(memory_drops, 10, "memory is left", [sender, receiver])
        receiver.start("receive", link.receives, 12, 4 << 20, 20000)
        link.finish(20)
        (process,) = joint.sites[0].published()
        assert process.totals["tcp_window_probes"] > 0
        assert process.totals["flows_replaced"] == 0
        assert sender.warnings == receiver.warnings == []
