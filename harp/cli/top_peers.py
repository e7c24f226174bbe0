# SPDX-License-Identifier: Apache-2.0
"""The rates by peer of `harp top --by-peer`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Optional

from harp.observe.flow_sums import SUMS, Peer, between
from harp.observe.message_times import in_ms
from harp.observe.statfile import Process

_HEADER = (
    f"{'PEER':<15} {'FLOWS':>5} {'OUT Gbit/s':>11} {'IN Gbit/s':>11} {'RETRANS/s':>10} "
    f"{'RTT ms':>8} {'MINRTT ms':>9} {'ACK_WAIT':>9} {'WINDOW_WAIT':>11} {'DEVICE_WAIT':>11} "
    f"{'RECEIVE_WAIT':>12} {'SEND99 ms':>9} {'RECV99 ms':>9}"
)


@dataclass(frozen=True)
class PeerRates:
    """What all processes of this host did with one peer in an interval. Waits are the seconds of
    waiting in each second, summed over flows. `rtt_ms` is the largest smoothed round trip and
    `min_rtt_ms` the smallest one, of the open flows; 0: nothing measured. 99 % of the messages of
    the interval took less than `send_p99` and `receive_p99` seconds; None: there was no message,
    inf: it took longer than the last bound. JSON has null for both."""

    peer: str
    flows: int
    out_gbit: float
    in_gbit: float
    retransmits: float
    rtt_ms: float
    min_rtt_ms: float
    ack_wait: float
    window_wait: float
    device_wait: float
    receive_wait: float
    send_p99: Optional[float]
    receive_p99: Optional[float]


def rates(pairs: Sequence[tuple[Process, Process]], seconds: float) -> list[PeerRates]:
    """The rates between two readings of each process, in the order of the peers' addresses."""
    found: dict[str, Peer] = {}
    for before, now in pairs:
        for address, one in between(before, now).items():
            found.setdefault(address, Peer()).merge(one)
    return [_rates(address, found[address], seconds) for address in sorted(found, key=IPv4Address)]


def _rates(address: str, one: Peer, seconds: float) -> PeerRates:
    moved = dict(zip(SUMS, one.sums))
    return PeerRates(
        peer=address,
        flows=one.flows,
        out_gbit=moved["bytes_out"] * 8e-9 / seconds,
        in_gbit=moved["bytes_in"] * 8e-9 / seconds,
        retransmits=moved["retransmits"] / seconds,
        rtt_ms=one.rtt_us / 1000,
        min_rtt_ms=one.min_rtt_us / 1000,
        ack_wait=moved["ack_wait_ms"] / 1000 / seconds,
        window_wait=moved["window_wait_ms"] / 1000 / seconds,
        device_wait=moved["device_wait_ms"] / 1000 / seconds,
        receive_wait=moved["receive_wait_ms"] / 1000 / seconds,
        send_p99=one.p99_s("S"),
        receive_p99=one.p99_s("R"),
    )


def table(view: Sequence[PeerRates]) -> Iterator[str]:
    """The lines of the table."""
    yield _HEADER
    for one in view:
        yield (
            f"{one.peer:<15} {one.flows:>5} {one.out_gbit:>11.3f} {one.in_gbit:>11.3f} "
            f"{one.retransmits:>10.1f} {one.rtt_ms:>8g} {one.min_rtt_ms:>9g} "
            f"{one.ack_wait:>9.2f} {one.window_wait:>11.2f} {one.device_wait:>11.2f} "
            f"{one.receive_wait:>12.2f} {in_ms(one.send_p99):>9} {in_ms(one.receive_p99):>9}"
        )
