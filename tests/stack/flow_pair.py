# SPDX-License-Identifier: Apache-2.0
"""Two stacks with the flow interface, and devices in Python, on one wire."""

from __future__ import annotations

from harp.testing._flow import FlowStack
from harp.testing.device import FlowHost

A, B = "192.0.2.1", "192.0.2.2"
BASE = {
    "prefix": 24,
    "max_connections": 64,
    "packets": 2048,
    "rto_min_us": 5_000,
    "delayed_ack_us": 1_000,
    "timestamps": 1,
    "window_scale": 7,
    "rcvbuf": 1 << 20,
}
TX = ("tx_checksum",)
TSO = ("tx_checksum", "tso")


def pair(wire, *, offloads=(), device=None, impair=None, delay_ns=20_000, rate_bps=0, capture=False,
         **config):  # fmt: skip
    """A wire between two hosts with devices."""
    hosts = []
    for address, seed in ((A, (1, 2)), (B, (3, 4))):
        fields = {**BASE, "address": address, "seed": seed, **config}
        stack = FlowStack(offloads=offloads, **fields)
        hosts.append(FlowHost(stack, seed=seed[0], **(device or {})))
    mtu = config.get("mtu", 1500)
    w = wire(*hosts, impair=impair, mtu=mtu, delay_ns=delay_ns, rate_bps=rate_bps, capture=capture)
    return w, hosts[0], hosts[1]
