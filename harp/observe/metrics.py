# SPDX-License-Identifier: Apache-2.0
"""The metrics of processes, for `harp stat --prometheus` and `harp exporter`. The exporter also has
the counters of processes that have ended lately.

The number of series is bounded: `statfile.FILES_MOST` files of a user, the counters of this release
and `FOREIGN_MOST` others, `INSTANCES_MOST` instances of a file, and `flow_sums.PEERS_MOST` peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from harp import _tables
from harp.observe import flow_sums, message_times
from harp.observe.prometheus import Family
from harp.observe.statfile import Process

FOREIGN_MOST = 64  # families of counters that this release does not know
INSTANCES_MOST = 8  # as many as an engine has (HARP_ENGINE_INSTANCES)

# Each of flow_sums.SUMS: the family, its sentence, and what the value is divided by.
_PEER_SUMS = (
    ("harp_peer_out_bytes_total", "Payload bytes that the peer has acknowledged.", 1),
    ("harp_peer_in_bytes_total", "Payload bytes received from the peer.", 1),
    ("harp_peer_retransmits_total", "Retransmissions to the peer, up to 64 KiB each.", 1),
    (
        "harp_peer_ack_wait_seconds_total",
        "Time that flows waited for acknowledgements: the network, or the peer's processor.",
        1000,
    ),
    (
        "harp_peer_window_wait_seconds_total",
        "Time that flows waited for the peer's window: the peer has posted no receive.",
        1000,
    ),
    (
        "harp_peer_device_wait_seconds_total",
        "Time that flows to the peer waited for room in this host's device.",
        1000,
    ),
    (
        "harp_peer_receive_wait_seconds_total",
        "Time that data of the peer waited here, because no receive was posted.",
        1000,
    ),
)


@dataclass(frozen=True)
class _Counter:
    """A counter's name in the statistics file, its kind there, and what its value is divided by."""

    name: str
    kind: str
    divisor: int


def documented() -> dict[str, str]:
    """The description of each counter, and of each old name."""
    return {counter["name"]: counter["doc"] for counter in _tables.counters()} | renamed()


def renamed() -> dict[str, str]:
    """The description of each old name of a counter."""
    return {old: f"Old name of {name}." for old, name in _tables.counter_aliases().items()}


def family_of(name: str, kind: str) -> str:
    """The family of a counter. Prometheus wants seconds, and the end `_total` for all counters and
    for nothing else."""
    base = f"harp_{name.removesuffix('_ns')}_seconds" if name.endswith("_ns") else f"harp_{name}"
    return base.removesuffix("_total") if kind == "gauge" else f"{base}_total"


def families(processes: Sequence[Process], sums: flow_sums.Readings) -> list[Family]:
    """All families. sums: has the earlier readings, and gets this one.

    The labels `job` and `instance` belong to Prometheus, which sets them by its own configuration.
    The pid is no label: many processes in containers have pid 1.
    """
    running = [process for process in processes if process.alive]
    found = [
        _info(running),
        _start(running),
        *_of_flows(processes, sums.add(processes)),
    ]
    return found + _of_counters(processes, {one.name for one in found})


def _identity(process: Process) -> dict[str, Any]:
    """Labels that identify one process on one NIC. An id is unique among a user's files, so `uid`
    is one of them."""
    return {
        "job_id": process.job,
        "rank": "" if process.rank is None else process.rank,
        "world_size": process.world_size or "",
        "host": process.host,
        "gpu": process.gpu,
        "device": process.device,
        "id": process.id,
        "uid": process.uid,
    }


def _info(processes: Sequence[Process]) -> Family:
    info = Family("harp_process_info", "gauge", "A process that uses HARP, on one of its NICs.")
    for process in processes:
        info.add(
            1,
            **_identity(process),
            process=process.process_id,
            address=process.address,
            command=process.command,
            release=process.release,
        )
    return info


def _start(processes: Sequence[Process]) -> Family:
    start = Family(
        "harp_process_start_time_seconds",
        "gauge",
        "When the process opened this NIC, since the epoch.",
    )
    for process in processes:
        start.add(round(process.started, 3), **_identity(process))
    return start


def _of_flows(processes: Sequence[Process], sums: list[flow_sums.FlowSums]) -> list[Family]:
    flows = Family("harp_peer_flows", "gauge", "Open flows with the peer.")
    receiving = Family(
        "harp_peer_receiving_flows", "gauge", "Open flows that receive messages from the peer."
    )
    rtt = Family(
        "harp_peer_rtt_seconds", "gauge", "The largest smoothed round trip of the open flows."
    )
    least = Family(
        "harp_peer_min_rtt_seconds", "gauge", "The smallest round trip of the open flows."
    )
    totals = [Family(name, "counter", sentence) for name, sentence, _ in _PEER_SUMS]
    histogram = Family(
        "harp_flow_rtt_seconds",
        "histogram",
        "Smoothed round trips of the open flows, each flow once a reading.",
    )
    messages = Family(
        "harp_message_seconds",
        "histogram",
        "Times of messages from isend or irecv to their completion.",
    )
    for process, one in zip(processes, sums):
        identity = _identity(process)
        for address, peer in one.peers.items():
            of = {**identity, "peer": address}
            flows.add(peer.flows, **of)
            receiving.add(peer.receiving, **of)
            if peer.rtt_us:
                rtt.add(peer.rtt_us / 1e6, **of)
            if peer.min_rtt_us:
                least.add(peer.min_rtt_us / 1e6, **of)
            for family, value, (_, _, divisor) in zip(totals, peer.sums, _PEER_SUMS):
                family.add(value / divisor if divisor > 1 else value, **of)
            for direction, (time_ns, *counts) in sorted(peer.messages.items()):
                operation = message_times.OPERATIONS[direction]
                labels = {key: str(value) for key, value in of.items()}
                _add_times(messages, time_ns, counts, {**labels, "operation": operation})
        _add_histogram(histogram, one, {key: str(value) for key, value in identity.items()})
    return [flows, receiving, rtt, least, *totals, histogram, messages]


def _add_times(family: Family, time_ns: int, counts: Sequence[int], of: dict[str, str]) -> None:
    """Every second bucket is enough for a dashboard, and halves the number of series."""
    below = 0
    for bucket, count in enumerate(counts[:-1]):
        below += count
        if bucket % 2 == 0 and bucket:
            bound = str(message_times.bound_s(bucket))
            family.samples.append((f"{family.name}_bucket", {**of, "le": bound}, below))
    total = sum(counts)
    family.samples.append((f"{family.name}_bucket", {**of, "le": "+Inf"}, total))
    family.samples.append((f"{family.name}_sum", of, time_ns / 1e9))
    family.samples.append((f"{family.name}_count", of, total))


def _add_histogram(family: Family, sums: flow_sums.FlowSums, of: dict[str, str]) -> None:
    below = 0
    for bound, count in zip((*map(str, flow_sums.RTT_BOUNDS), "+Inf"), sums.rtt_counts):
        below += count
        family.samples.append((f"{family.name}_bucket", {**of, "le": bound}, below))
    family.samples.append((f"{family.name}_sum", of, sums.rtt_sum_us / 1e6))
    family.samples.append((f"{family.name}_count", of, below))


def _of_counters(processes: Sequence[Process], taken: set[str]) -> list[Family]:
    """A family for each counter, with a sample for each instance. taken: names of families that no
    file may use."""
    sentences = documented()
    found = []
    for named, counter in _named(processes, taken).items():
        kind = "gauge" if counter.kind == "gauge" else "counter"
        family = Family(named, kind, sentences.get(counter.name, counter.name))
        for process in processes:
            if process.kinds.get(counter.name) != counter.kind:
                continue
            identity = _identity(process)
            for number, instance in enumerate(process.instances[:INSTANCES_MOST]):
                value = instance[counter.name]
                shown = value / counter.divisor if counter.divisor > 1 else value
                family.add(shown, **identity, queue=number)
        found.append(family)
    return found


def _named(processes: Sequence[Process], taken: set[str]) -> dict[str, _Counter]:
    """The counter of each family. The counters of this release come first: a file of another
    release must not change the kind of one, or duplicate a family."""
    known = {counter["name"]: counter["kind"] for counter in _tables.counters()}
    known |= {old: known[name] for old, name in _tables.counter_aliases().items()}
    found: dict[str, _Counter] = {}

    def add(name: str, kind: str) -> Optional[str]:
        family = family_of(name, kind)
        if family in taken or family in found:
            return None
        found[family] = _Counter(name, kind, 10**9 if name.endswith("_ns") else 1)
        return family

    for name, kind in known.items():
        add(name, kind)
    published = {(name, kind) for process in processes for name, kind in process.kinds.items()}
    foreign = 0
    for name, kind in sorted(one for one in published if one[0] not in known):
        foreign += add(name, kind) is not None
        if foreign == FOREIGN_MOST:
            break
    names = {name for name, _ in published}
    return {family: counter for family, counter in found.items() if counter.name in names}
