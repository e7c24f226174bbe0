# SPDX-License-Identifier: Apache-2.0
"""Whether the kernels of two hosts reach each other by TCP, as NCCL's bootstrap needs it.

A connection is answered, reset or swallowed. A firewall that rejects resets it. A firewall that
drops swallows it.
"""

from __future__ import annotations

import errno
import socket
import socketserver
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from harp.check import blame
from harp.check.hosts import Host
from harp.cli.findings import Finding, fault

ANSWERED, RESET, SWALLOWED, UNREACHABLE, WRONG = (
    "answered", "reset", "swallowed", "unreachable", "wrong",
)  # fmt: skip
WAIT_S = 4.0  # the kernel sends a SYN three times in this time
WORKERS = 64
TOKEN = 16  # bytes

Results = Mapping[tuple[int, int], str]  # from a host to a host: how TCP was answered


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.settimeout(WAIT_S)
        try:
            self.request.sendall(self.request.recv(TOKEN))
        except OSError:
            pass  # the peer has given up, and says so


class Listener:
    """Answers on one address of this host until `close`. `port` is 0 if the address cannot be
    used."""

    def __init__(self, address: str) -> None:
        self.port = 0
        self._server = None
        try:
            self._server = socketserver.ThreadingTCPServer((address, 0), _Echo)
        except OSError:
            return
        self._server.daemon_threads = True
        self._server.request_queue_size = 128
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Ends it."""
        if self._server:
            self._server.shutdown()
            self._server.server_close()


def _try(source: str, target: str, port: int, token: bytes) -> str:
    try:
        with socket.create_connection((target, port), WAIT_S, (source, 0)) as sock:
            sock.sendall(token)
            return ANSWERED if sock.recv(TOKEN) == token else WRONG
    except (ConnectionRefusedError, ConnectionResetError):
        return RESET
    except (socket.timeout, TimeoutError):
        return SWALLOWED
    except OSError as failure:
        known = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL}
        return UNREACHABLE if failure.errno in known else f"{failure.strerror}"


def probe(tries: Sequence[tuple[int, str, str, int]], token: bytes) -> list[tuple[int, str]]:
    """How each try ends. A try: the number of the other host, own address, its address and port.
    Takes WAIT_S seconds if TCP is swallowed, else no time."""
    if not tries:
        return []
    with ThreadPoolExecutor(min(WORKERS, len(tries))) as pool:
        ends = pool.map(lambda one: _try(one[1], one[2], one[3], token[:TOKEN]), tries)
        return [(one[0], end) for one, end in zip(tries, ends)]


_SAYS = {
    RESET: (
        "is reset: a firewall rejects it",
        "allow TCP between the hosts of the job (nft list ruleset; iptables -S; security groups)",
    ),
    SWALLOWED: (
        "is swallowed without an answer: a firewall drops it",
        "allow TCP between the hosts of the job (nft list ruleset; iptables -S; security groups)",
    ),
    UNREACHABLE: (
        "finds no way: the host does not answer ARP, or there is no route",
        "see ip route and ip neigh on both hosts, and the VLAN of both ports",
    ),
    WRONG: (
        "is answered by another program or host",
        "see whether two hosts have one address",
    ),
}


def _sentence(who: str, outcome: str) -> Finding:
    says, remedy = _SAYS.get(outcome, (f"fails ({outcome})", "see ip route on both hosts"))
    return fault("firewall", f"the kernel's TCP {who} {says}; {remedy}")


def judge(hosts: Sequence[Host], results: Results) -> Iterator[Finding]:
    """Names the hosts or pairs between which the kernel's TCP is not answered."""
    bad: dict[str, list[tuple[int, int]]] = {}
    for link, outcome in results.items():
        if outcome != ANSWERED:
            bad.setdefault(outcome, []).append(link)
    everyone: Collection[int] = [one.number for one in hosts]
    for outcome, links in bad.items():
        blamed = blame.find(links, everyone)
        for host, mine in blamed.hosts.items():
            way = blame.direction(host, mine)
            yield _sentence(f"{way} {hosts[host].name}", outcome)
        for source, target in blamed.links:
            who = f"from {hosts[source].name} to {hosts[target].name}"
            yield _sentence(who, outcome)


def tries_of(host: Host, hosts: Sequence[Host], ports: Sequence[Any]) -> list[Any]:
    """The tries of a host: from each of its NICs to the NIC of the same number of each other host.
    ports: those of each host's listeners, by its NICs; None: the host is lost."""
    found: list[Any] = []
    for other in hosts:
        theirs = ports[other.number]
        if other.number == host.number or not theirs:
            continue
        for mine, nic, port in zip(host.nics, other.nics, theirs):
            if port and mine["shared"] and mine["address"]:
                found.append((other.number, mine["address"], nic["address"], port))
    return found
