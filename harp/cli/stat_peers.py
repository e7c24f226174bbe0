# SPDX-License-Identifier: Apache-2.0
"""The sums by peer of `harp stat --by-peer`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address
from typing import Any

from harp.observe.flow_sums import SUMS, Peer
from harp.observe.message_times import OPERATIONS, for_json, in_ms

_HEADER = (
    f"{'PEER':<15} {'FLOWS':>5} {'BYTES OUT':>16} {'BYTES IN':>16} {'RETRANS':>8} "
    f"{'RTT ms':>8} {'MINRTT ms':>9} {'ACK_WAIT ms':>11} {'WINDOW_WAIT ms':>14} "
    f"{'DEVICE_WAIT ms':>14} {'RECEIVE_WAIT ms':>15} {'SEND99 ms':>9} {'RECV99 ms':>9}"
)


def _row(address: str, one: Peer) -> dict[str, Any]:
    return {
        "peer": address,
        "flows": one.flows,
        **dict(zip(SUMS, one.sums)),
        "rtt_us": one.rtt_us,
        "min_rtt_us": one.min_rtt_us,
        **{f"{name}_p99": one.p99_s(direction) for direction, name in OPERATIONS.items()},
    }


def _rows(peers: Mapping[str, Peer]) -> list[dict[str, Any]]:
    return [_row(address, peers[address]) for address in sorted(peers, key=IPv4Address)]


def table(peers: Mapping[str, Peer]) -> Iterator[str]:
    """The lines of the table, in the order of the addresses."""
    yield _HEADER
    for row in _rows(peers):
        yield (
            f"{row['peer']:<15} {row['flows']:>5} {row['bytes_out']:>16} {row['bytes_in']:>16} "
            f"{row['retransmits']:>8} {row['rtt_us'] / 1000:>8g} {row['min_rtt_us'] / 1000:>9g} "
            f"{row['ack_wait_ms']:>11} {row['window_wait_ms']:>14} {row['device_wait_ms']:>14} "
            f"{row['receive_wait_ms']:>15} "
            f"{in_ms(row['send_p99']):>9} {in_ms(row['receive_p99']):>9}"
        )


def as_json(peers: Mapping[str, Peer]) -> str:
    """{"schema": "harp.stat.peers/1", "peers": [...]}, with the sums of harp.observe.flow_sums,
    round trips in microseconds, and the times of 99 % of the messages in seconds: null without
    messages, and above the last bound."""
    return json.dumps(
        {"schema": "harp.stat.peers/1", "peers": [for_json(row) for row in _rows(peers)]}, indent=1
    )
