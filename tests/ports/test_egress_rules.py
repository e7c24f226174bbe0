# SPDX-License-Identifier: Apache-2.0
"""A rule of nftables drops what a port sends to a peer. The kernel reports this as a full queue."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from packet_ports import MSS, UNUSED_ADDRESS, Hosts, Make, tcp_frame
from port_probe import PortError
from xdp_ports import needs_xdp

from tools.hosts.lab import Host

RULES = f"""table netdev forbidden {{
  chain out {{
    type filter hook egress device "eth0" priority filter;
    ip daddr {UNUSED_ADDRESS} drop
  }}
}}"""


@contextlib.contextmanager
def forbidden(host: Host) -> Iterator[None]:
    if not shutil.which("nft"):
        pytest.skip("nft is missing")
    load = host.popen(["nft", "-f", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    _, said = load.communicate(RULES, timeout=20)
    assert load.returncode == 0, said
    try:
        yield
    finally:
        host.run(["nft", "delete", "table", "netdev", "forbidden"])


@pytest.mark.parametrize("size", [10, 3000])
@pytest.mark.parametrize("scheme", ["packet", pytest.param("xdp", marks=needs_xdp)])
def test_frame_that_a_rule_drops_does_not_block_others(
    probe: Make, hosts: Hosts, scheme: str, size: int
) -> None:
    ends = []
    for host in hosts("veth-1500"):
        one = probe(host)
        one.open(f"{scheme}:eth0", address=f"{host.own_address}/24")
        ends.append(one)
    a, b = ends
    with forbidden(hosts("veth-1500")[0]):
        lost = tcp_frame(a, b, b"x" * size, dst=UNUSED_ADDRESS)
        for _ in range(2):
            with contextlib.suppress(PortError):
                a.send(lost, segment=MSS if size > MSS else 0)
        arrived = 0
        for _ in range(50):
            with contextlib.suppress(PortError):
                a.send(tcp_frame(a, b, b"after"))
            arrived += len(b.receive(1, 0.02))
        assert arrived >= 45
        assert not a.arm(True)
