# SPDX-License-Identifier: Apache-2.0
"""The path MTU between hosts: full-size frames each way, and smaller ones.

Each host sends UDP datagrams that may not be fragmented to each other host, and each host says
which have come. They are received by a packet socket, as HARP receives, so the host's own firewall
does not matter. An address of HARP's own has no kernel behind it: its frames are written by hand.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Optional

from harp.check import blame
from harp.check.hosts import Host
from harp.cli.findings import Finding, fault

SMALL = 256  # bytes of an IPv4 packet that every path carries
STEPS = (1280, 1400, 1500, 4000)  # tried below the full size
COPIES = 3
LISTEN_S = 1.5
PORT = 29412  # of datagrams to addresses of HARP's own
HEADERS = 28  # IPv4 and UDP, bytes
TOKEN = 16

_ETH_P_IP = 0x0800
_PACKET_OUTGOING = 4
_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE = 10, 3
_MARK = struct.Struct(f"!{TOKEN}sHHH")  # token, host, NIC, size

Seen = Mapping[tuple[int, int], Mapping[int, int]]  # from a host to a host: largest size by NIC


def sizes(mine: int, theirs: int) -> list[int]:
    """The sizes to try between two MTUs, bytes of IPv4: from small to full."""
    full = min(mine, theirs)
    return [SMALL, *[step for step in STEPS if step < full], full] if full > SMALL else []


def _same_network(one: str, address: str) -> bool:
    return ipaddress.ip_address(address) in ipaddress.ip_interface(one).network


def _ip_sum(header: bytes) -> int:
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _frame(mine: Mapping[str, Any], other: Mapping[str, Any], port: int, payload: bytes) -> bytes:
    """An Ethernet frame with a UDP datagram without checksum (RFC 768)."""
    udp = struct.pack("!HHHH", PORT, port, 8 + len(payload), 0) + payload
    ends = socket.inet_aton(mine["address"]) + socket.inet_aton(other["address"])
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0x4000, 64, 17, 0) + ends
    head = head[:10] + struct.pack("!H", _ip_sum(head)) + head[12:]
    macs = bytes.fromhex((other["mac"] + mine["mac"]).replace(":", ""))
    return macs + struct.pack("!H", _ETH_P_IP) + head + udp


class Prober:
    """The datagrams of one host. `heard` has the largest size from each host, by NIC."""

    def __init__(self, host: Host, hosts: Sequence[Host], ports: Sequence[Any], token: bytes):
        self._host, self._hosts, self._ports, self._token = host, hosts, ports, token[:TOKEN]
        self.heard: dict[tuple[int, int], int] = {}  # by host and NIC
        self._sockets: list[socket.socket] = []
        for number, nic in enumerate(host.nics):
            made = self._receiver(number, nic)
            if made:
                self._sockets.append(made)

    def _port(self, host: Host, number: int) -> int:
        ports = self._ports[host.number] or ()
        return (ports[number] if number < len(ports) else 0) or PORT

    def _receiver(self, number: int, nic: Mapping[str, Any]) -> Optional[socket.socket]:
        try:
            if self._host.facts["may_open_sockets"] and nic["interface"]:
                made = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_IP))
                made.bind((nic["interface"], _ETH_P_IP))
            elif nic["shared"] and nic["address"]:
                made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                made.bind((nic["address"], self._port(self._host, number)))
            else:
                return None
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            return made
        except OSError:
            return None

    def expected(self) -> dict[tuple[int, int], int]:
        """The full size from each other host, by NIC, for all that can be tried."""
        found = {}
        for other in self._hosts:
            if other.number == self._host.number or not self._ports[other.number]:
                continue
            for number, (theirs, nic) in enumerate(zip(other.nics, self._host.nics)):
                if _may_try(theirs, nic):
                    tried = sizes(theirs["mtu"], nic["mtu"])
                    if tried:
                        found[other.number, number] = tried[-1]
        return found

    def send(self) -> None:
        """Sends all sizes to all other hosts, the next one first, so that not all hosts send to one
        host at the same time."""
        turn = self._host.number + 1
        for other in [*self._hosts[turn:], *self._hosts[: turn - 1]]:
            if not self._ports[other.number]:
                continue
            for number, (mine, nic) in enumerate(zip(self._host.nics, other.nics)):
                if _may_try(mine, nic):
                    with suppress(OSError):  # doctor and the MTUs' comparison say why
                        self._send(number, mine, nic, self._port(other, number))

    def _send(
        self, number: int, mine: Mapping[str, Any], nic: Mapping[str, Any], port: int
    ) -> None:
        payloads = []
        for size in sizes(mine["mtu"], nic["mtu"]) * COPIES:
            mark = _MARK.pack(self._token, self._host.number, number, size)
            payloads.append(mark.ljust(size - HEADERS, b"\0"))
        if mine["shared"]:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
                sock.bind((mine["address"], 0))
                for payload in payloads:
                    with suppress(OSError):
                        sock.sendto(payload, (nic["address"], port))
            return
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as raw:
            raw.bind((mine["interface"], 0))
            for payload in payloads:
                with suppress(OSError):
                    raw.send(_frame(mine, nic, port, payload))

    def listen(self) -> None:
        """Reads until all has come, for at most LISTEN_S seconds."""
        until = time.monotonic() + LISTEN_S
        wanted = self.expected()
        while time.monotonic() < until and any(
            self.heard.get(one, 0) < size for one, size in wanted.items()
        ):
            for sock in self._sockets:
                self._read(sock)
            time.sleep(0.005)

    def _read(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        while True:
            try:
                data, source = sock.recvfrom(65536)
            except OSError:
                return
            if sock.family == socket.AF_PACKET and source[2] == _PACKET_OUTGOING:
                continue
            at = data.find(self._token, 0, 128)
            if at < 0 or len(data) < at + _MARK.size:
                continue
            _, host, number, size = _MARK.unpack_from(data, at)
            if len(data) - at >= size - HEADERS:
                self.heard[host, number] = max(size, self.heard.get((host, number), 0))

    def close(self) -> None:
        """Closes the sockets."""
        for sock in self._sockets:
            sock.close()


def _may_try(mine: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether datagrams between these NICs can be sent and received."""
    if not mine["address"] or not other["address"] or mine["address"] == other["address"]:
        return False
    if mine["shared"] and other["shared"]:
        return True
    return bool(
        mine["interface"]
        and other["interface"]
        and other["mac"]
        and _same_network(mine["prefix"], other["address"])
    )


def judge(hosts: Sequence[Host], heard: Seen) -> Iterator[Finding]:
    """Names the hosts or pairs whose path loses full-size frames. Says nothing about pairs whose
    small ones do not pass either: other checks do."""
    bad: dict[tuple[int, int], tuple[int, int]] = {}  # what passes, and what should
    for (source, target), by_nic in heard.items():
        for number, size in by_nic.items():
            wanted = min(hosts[source].nics[number]["mtu"], hosts[target].nics[number]["mtu"])
            if 0 < size < wanted:
                bad[source, target] = (size, wanted)
    blamed = blame.find(bad, [one.number for one in hosts])
    for host, links in blamed.hosts.items():
        way = blame.direction(host, links)
        yield _lost(f"{way} {hosts[host].name}", [bad[link] for link in links])
    for source, target in blamed.links:
        yield _lost(f"from {hosts[source].name} to {hosts[target].name}", [bad[source, target]])


def _lost(who: str, measured: Collection[tuple[int, int]]) -> Finding:
    passes = min(size for size, _ in measured)
    wanted = max(size for _, size in measured)
    return fault(
        "path MTU",
        f"frames {who} get lost on the way: {passes} bytes pass, and {wanted} do not; raise the "
        f"MTU of the switch's ports and of bridges in between, or set mtu = {passes} in the "
        "ztcp*.conf of all hosts",
    )
