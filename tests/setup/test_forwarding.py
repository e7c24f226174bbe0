# SPDX-License-Identifier: Apache-2.0
"""A forwarding host with set-up sends nothing in answer to frames for HARP's own address. Without
set-up it sends ARP and ICMP, which validates the test."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tools.hosts.lab import Lab

OWN = "10.77.0.102"

# Sends to the address, and prints the frames that the other host (by its hardware address) sends
# meanwhile.
PROVOKE = """
import select, socket, sys, time
own, mac = sys.argv[1:]
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.bind(("eth0", 0))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
end = time.monotonic() + 4.5  # three requests of ARP, then host unreachable
sent = 0
while time.monotonic() < end:
    if sent < 8:
        sent += 1
        udp.sendto(b"?" * 100, (own, 50000))
        tcp = socket.socket()
        tcp.setblocking(False)
        tcp.connect_ex((own, 50001))
    if select.select([wire], [], [], 0.1)[0]:
        frame = wire.recv(2048)
        if frame[6:12] == bytes.fromhex(mac.replace(":", "")):
            kind = {b"\\x08\\x06": "arp", b"\\x08\\x00": "ip"}.get(frame[12:14], "?")
            print(kind if kind != "ip" else "icmp" if frame[23] == 1 else "forwarded")
"""


def sent_protocols(lab: Lab) -> set[str]:
    sender, target = lab.hosts
    sender.run(["ip", "neigh", "replace", OWN, "lladdr", target.mac, "dev", "eth0"])
    return set(sender.run([sys.executable, "-c", PROVOKE, OWN, target.mac]).stdout.split())


# The silent case comes first: a host that has started to send continues for some seconds.
@pytest.mark.slow
@pytest.mark.parametrize("ready", [True, False])
def test_forwarding_host_is_silent_after_setup(ready: bool, lab: Lab, host: Any) -> None:
    lab.hosts[1].write("/proc/sys/net/ipv4/ip_forward", "1")
    if ready:
        host.harp("setup", "apply", "--device", "packet:eth0", "--address", f"{OWN}/24")
    try:
        sent = sent_protocols(lab)
    finally:
        if ready:
            host.harp("setup", "undo")
        lab.hosts[1].write("/proc/sys/net/ipv4/ip_forward", "0")
    if ready:
        assert sent == set()
    else:
        assert {"arp", "icmp"} <= sent  # this validates the silence above
