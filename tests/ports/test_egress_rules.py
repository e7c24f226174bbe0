# SPDX-License-Identifier: Apache-2.0
"""A rule of nftables drops what a port sends to a peer. The kernel reports this as a full queue."""

from __future__ import annotations

import contextlib
import errno
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest
from packet_ports import MSS, UNUSED_ADDRESS, Hosts, Make, tcp_frame
from port_probe import PortError, Probe
from xdp_ports import needs_xdp

from tools.hosts.lab import Host
from tools.hosts.ranks import wait_until

SCHEMES = pytest.mark.parametrize("scheme", ["packet", pytest.param("xdp", marks=needs_xdp)])
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


def ends(probe: Make, hosts: Hosts, scheme: str) -> list[Probe]:
    made = [probe(host) for host in hosts("veth-1500")]
    for one, host in zip(made, hosts("veth-1500")):
        one.open(f"{scheme}:eth0", address=f"{host.own_address}/24")
    return made


@SCHEMES
def test_frame_that_a_rule_drops_does_not_block_others(
    probe: Make, hosts: Hosts, scheme: str
) -> None:
    """The rule also drops each of many small frames, and holds none of the others up."""
    a, b = ends(probe, hosts, scheme)
    with forbidden(hosts("veth-1500")[0]):
        arrived = 0
        for _ in range(50):
            with contextlib.suppress(PortError):
                a.send(tcp_frame(a, b, b"x" * 10, dst=UNUSED_ADDRESS))
            a.send(tcp_frame(a, b, b"after"))
            arrived += len(b.receive(1, 0.05))
        assert arrived >= 45
        wait_until(lambda: not a.arm(True), 5, "a frame is held for ever")


@SCHEMES
def test_long_frame_that_a_rule_drops_is_lost(probe: Make, hosts: Hosts, scheme: str) -> None:
    """Its sender would try again for ever, though frames to other hosts get through."""
    a, b = ends(probe, hosts, scheme)
    with forbidden(hosts("veth-1500")[0]):
        errors = []
        limit = time.monotonic() + 5
        while errno.EIO not in errors and time.monotonic() < limit:
            try:
                a.send(tcp_frame(a, b, b"x" * 3000, dst=UNUSED_ADDRESS), segment=MSS)
            except PortError as failed:
                errors.append(failed.number)
            a.send(tcp_frame(a, b, b"beside"))
        assert errno.EIO in errors and set(errors) <= {errno.EAGAIN, errno.EIO}
        assert len(b.receive(8, 0.2)) > 0


@SCHEMES
def test_rule_against_all_hosts_lets_the_worker_sleep(
    probe: Make, hosts: Hosts, scheme: str
) -> None:
    a, b = ends(probe, hosts, scheme)
    with forbidden(hosts("veth-1500")[0]):
        with contextlib.suppress(PortError):
            a.send(tcp_frame(a, b, b"x", dst=UNUSED_ADDRESS))
        wait_until(lambda: not a.arm(True), 5, "a frame is held for ever")
