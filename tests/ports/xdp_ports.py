# SPDX-License-Identifier: Apache-2.0
"""Pairs of xdp ports."""

from __future__ import annotations

import time

import pytest
from packet_ports import Make, tcp_frame
from port_probe import HEADERS, PROBE, Probe, Received

from tools.hosts.lab import Host

needs_xdp = pytest.mark.skipif(
    PROBE.exists() and not (PROBE.parent / "xdp_program.o").exists(),
    reason="this build has no XDP (no clang)",
)

# Who sends in copy mode: a packet socket, or the AF_XDP socket.
BOTH_SENDERS = pytest.mark.parametrize("sender", ["auto", "xdp"])
XDP_SENDS = pytest.mark.parametrize("sender", ["xdp"])


def opened(make: Make, host: Host, device: str = "xdp:eth0", own: bool = True) -> Probe:
    one = make(host)
    one.open(device, address=f"{host.own_address}/24" if own else "-")
    return one


def until_received(a: Probe, b: Probe) -> list[Received]:
    deadline = time.monotonic() + 20
    got: list[Received] = []
    while not got and time.monotonic() < deadline:
        a.send(tcp_frame(a, b, b"back"))
        got = [f for f in b.receive(4, 0.1) if f.data[HEADERS:] == b"back"][:1]
    return got
