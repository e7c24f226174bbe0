# SPDX-License-Identifier: Apache-2.0
"""What the holder of a passed socket can do: it receives only frames of its own ports, and nothing
that it does changes this."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Optional

import pytest
from agents import AgentProcess, Pods
from raw_client import Client, Opened, user

from tools.hosts.lab import Lab
from tools.hosts.ranks import wait_until

NOBODY = 65534
SO_ATTACH_FILTER, SO_DETACH_FILTER, SO_LOCK_FILTER = 26, 27, 44
SO_ATTACH_BPF = 50
ETH_P_ALL = 3
SOL_PACKET, PACKET_FANOUT = 263, 18
AF_XDP = 44
PASS_ALL = struct.pack("=HBBI", 0x06, 0, 0, 0xFFFFFFFF)
TCP_DESTINATION = 14 + 20 + 2
VNET_HEADER = 10
StartAgent = Callable[..., AgentProcess]


@pytest.fixture
def agent(lab: Lab, start_agent: StartAgent) -> AgentProcess:
    return start_agent(lab.hosts[0], "--allow", "nobody", "--address", "10.77.0.0/24")


@pytest.fixture
def opened(agent: AgentProcess) -> Iterator[Opened]:
    """The sockets of a packet device of two instances: state, data, data, ARP, ARP."""
    with Client(agent.socket, NOBODY) as client:
        got = client.open(queues=2)
        assert len(got.fds) == 5
        yield got
        got.close()


def adopted(fd: int) -> socket.socket:
    return socket.socket(fileno=os.dup(fd))


def domain(fd: int) -> Optional[int]:
    """The family of a socket; None: no socket."""
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=os.dup(fd)) as one:
        return one.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN)


def program() -> tuple[bytes, object]:
    """struct sock_fprog of a filter that passes all, and the memory that it points to."""
    code = ctypes.create_string_buffer(PASS_ALL)
    return struct.pack("HL", 1, ctypes.addressof(code)), code


def assert_locked(fd: int) -> None:
    passes, code = program()
    with adopted(fd) as one:
        for option, value in (
            (SO_ATTACH_FILTER, passes),
            (SO_DETACH_FILTER, struct.pack("i", 0)),
            (SO_LOCK_FILTER, struct.pack("i", 0)),
            (SO_ATTACH_BPF, struct.pack("i", 0)),
        ):
            with pytest.raises(PermissionError):
                one.setsockopt(socket.SOL_SOCKET, option, value)
    assert code


@pytest.mark.parametrize("uid", [NOBODY, 0])
def test_filters_are_locked(opened: Opened, uid: int) -> None:
    with user(uid):
        for fd in opened.fds:
            assert_locked(fd)


def test_every_socket_is_a_packet_socket(opened: Opened) -> None:
    """A UDP or UNIX socket of the node's namespace would reach the node's programs."""
    assert {domain(fd) for fd in opened.fds} == {socket.AF_PACKET}


def test_sockets_of_an_xdp_device(agent: AgentProcess) -> None:
    """Its packet sockets are locked, too. The others are AF_XDP sockets, their memory, and the link
    of the program."""
    with Client(agent.socket, NOBODY) as client:
        opened = client.open(device="xdp:eth0")
        domains = [domain(fd) for fd in opened.fds]
        assert set(domains) == {socket.AF_PACKET, AF_XDP, None}
        for fd, family in zip(opened.fds, domains):
            if family == socket.AF_PACKET:
                assert_locked(fd)
        opened.close()


def test_listener_reaches_nobody(lab: Lab, agent: AgentProcess) -> None:
    """Its holder could else make it a connection of the node's: to 127.0.0.1, for example."""
    code = (
        "import socket\nlistener = socket.create_server(('127.0.0.1', 7777))\n"
        "print('ready', flush=True)\nlistener.accept()"
    )
    knock = (
        "import socket, sys\ns = socket.socket()\ns.settimeout(0.5)\n"
        "s.connect_ex(('10.77.0.1', int(sys.argv[1])))"
    )
    server = lab.hosts[0].popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert server.stdout and server.stdout.readline() == "ready\n"
        with Client(agent.socket, NOBODY) as client:
            opened = client.open()
            held = client.listen(opened)
            assert_locked(held.fds[0])
            with adopted(held.fds[0]) as one:
                one.shutdown(socket.SHUT_RDWR)
                one.settimeout(0.5)
                with pytest.raises((TimeoutError, socket.timeout)):
                    one.connect(("127.0.0.1", 7777))
            with adopted(held.fds[1]) as one, pytest.raises(BlockingIOError):
                one.setblocking(False)
                lab.hosts[1].run([sys.executable, "-c", knock, str(held.port + 1)])
                one.accept()
            opened.close(), held.close()
    finally:
        server.kill()
        server.communicate()


def test_job_cannot_join_the_instances_of_another(agent: AgentProcess, opened: Opened) -> None:
    """It would take a share of the other job's frames away."""
    with Client(agent.socket, NOBODY) as client:
        mine = client.open()
        with adopted(opened.fds[1]) as theirs, adopted(mine.fds[1]) as one:
            group = theirs.getsockopt(SOL_PACKET, PACKET_FANOUT)
            with user(NOBODY), pytest.raises(OSError) as failed:
                one.setsockopt(SOL_PACKET, PACKET_FANOUT, group)
            assert failed.value.errno == errno.ENOSPC
        mine.close()


# -- what a data socket receives


def frames(sockets: list[socket.socket]) -> list[bytes]:
    """All frames that wait in packet sockets."""
    found = []
    for one in sockets:
        while True:
            try:
                found.append(one.recv(70000)[VNET_HEADER:])
            except BlockingIOError:
                break
    return found


def send_frame(lab: Lab, port: int) -> None:
    """A TCP segment from host 1 to a port of host 0."""
    host, peer = lab.hosts[0], lab.hosts[1]
    code = (
        "from scapy.all import Ether, IP, TCP, sendp\n"
        f"sendp(Ether(src='{peer.mac}', dst='{host.mac}') / IP(src='{peer.address}', "
        f"dst='{host.address}') / TCP(sport=9, dport={port}, flags='A'), iface='eth0', verbose=0)"
    )
    peer.run([sys.executable, "-c", code], timeout=60)


def ports_of(seen: list[bytes]) -> set[int]:
    """The destination ports of TCP segments."""
    return {
        struct.unpack_from("!H", frame, TCP_DESTINATION)[0]
        for frame in seen
        if frame[12:14] == b"\x08\x00" and frame[23] == socket.IPPROTO_TCP
    }


def kernel_transfer(lab: Lab) -> None:
    """1 MB over kernel TCP from host 1 to host 0, and back."""
    host = lab.hosts[0]
    code = (
        "import socket\nl = socket.create_server(('', 60500))\nprint('ready', flush=True)\n"
        "c, _ = l.accept()\nwhile c.recv(65536): pass\nc.sendall(bytes(1000000))"
    )
    server = host.popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert server.stdout and server.stdout.readline() == "ready\n"
    code = (
        "import socket\nc = socket.create_connection(('10.77.0.1', 60500))\n"
        "c.sendall(bytes(1000000))\nc.shutdown(socket.SHUT_WR)\nwhile c.recv(65536): pass"
    )
    lab.hosts[1].run([sys.executable, "-c", code])
    assert server.wait(20) == 0
    server.stdout.close()


def test_job_sees_no_frame_of_others(
    lab: Lab, agent: AgentProcess, start_agent: StartAgent, start_pods: Pods
) -> None:
    """Neither of the kernel's connections, nor of another job."""
    with Client(agent.socket, NOBODY) as client:
        opened = client.open()
        with adopted(opened.fds[1]) as data:
            data.setblocking(False)
            kernel_transfer(lab)
            agents = [agent, start_agent(lab.hosts[1], "--allow", "nobody")]
            ranks = start_pods(agents, "all_reduce", "-b", "1M", "-e", "1M", "-n", "20")
            for rank in ranks:
                assert rank.wait(60) == 0, rank.lines()
            other = [grant["ports"][0] for grant in agent.ask()["grants"]]
            assert opened.first in other
            seen = frames([data])
            assert not ports_of(seen), "frames of other connections"
            assert {frame[12:14] for frame in seen} <= {b"\x08\x06"}  # ARP
            send_frame(lab, opened.first)  # the count above shows nothing if no frame comes
            send_frame(lab, opened.first + 512)
            assert ports_of(frames([data])) == {opened.first}
        opened.close()


def test_rebound_socket_sees_only_its_own_ports(lab: Lab, agent: AgentProcess) -> None:
    """bind(2) to another interface needs no privilege."""
    with Client(agent.socket, NOBODY) as client:
        opened = client.open()
        with adopted(opened.fds[1]) as data:
            data.setblocking(False)
            with user(NOBODY):
                data.bind(("lo", ETH_P_ALL))
                data.bind(("eth0", ETH_P_ALL))
            kernel_transfer(lab)
            send_frame(lab, opened.first)
            assert ports_of(frames([data])) == {opened.first}
        opened.close()


def test_grant_lasts_until_the_last_socket_is_closed(lab: Lab, agent: AgentProcess) -> None:
    """A job that gives up its ports but keeps a socket would see the frames of the next job."""
    with Client(agent.socket, NOBODY) as client:
        opened = client.open(queues=2)
    kept = opened.fds.pop(3)  # the first ARP socket
    first = opened.first
    opened.close()
    with Client(agent.socket) as client:
        other = client.open()
        assert other.first != first
        other.close()
    assert any(grant["ports"][0] == first for grant in agent.ask()["grants"])
    os.close(kept)
    with Client(agent.socket) as client:
        again = client.open()
        assert again.first == first
        again.close()
    wait_until(lambda: not agent.ask()["grants"], 10, "the agent keeps the grant of closed sockets")


def test_xdp_grant_lasts_until_the_program_is_detached(lab: Lab, agent: AgentProcess) -> None:
    """A job could keep the link and an AF_XDP socket only. The program then takes all frames of its
    ports, also those of the next job."""
    with Client(agent.socket, NOBODY) as client:
        opened = client.open(device="xdp:eth0")
        first = opened.first
        link = next(fd for fd in opened.fds if "bpf_link" in os.readlink(f"/proc/self/fd/{fd}")
                    or "bpf-link" in os.readlink(f"/proc/self/fd/{fd}"))  # fmt: skip
        kept = [fd for fd in opened.fds if fd == link or domain(fd) == AF_XDP]
        for fd in kept:
            opened.fds.remove(fd)
        opened.close()
    assert agent.ask()["granted"] == 1
    with Client(agent.socket) as client:
        other = client.open()
        assert other.first != first
        other.close()
    for fd in kept:
        os.close(fd)
    wait_until(lambda: not agent.ask()["grants"], 15, "the agent keeps the grant of closed sockets")
