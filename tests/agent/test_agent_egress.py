# SPDX-License-Identifier: Apache-2.0
"""What a passed packet socket may still do, and the files that close a part of it: egress.nft and
seccomp.json of `harp agent file`."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Optional

import pytest
from agents import AgentProcess, Pods
from raw_client import Client, Opened, user

from harp.cli.printed_files import OF_AGENT
from tools.hosts.lab import Host, Lab

PYTHON = os.path.realpath(sys.executable)  # other users may not enter the checkout

NOBODY = 65534
SOL_PACKET, PACKET_QDISC_BYPASS = 263, 20
VNET_HEADER = bytes(10)
OTHER_MAC = b"\2\0\0\0\0\x99"
StartAgent = Callable[..., AgentProcess]


@pytest.fixture
def host(lab: Lab) -> Host:
    return lab.hosts[0]


@pytest.fixture
def agent(host: Host, start_agent: StartAgent) -> AgentProcess:
    """It runs as root here, so the rules look for root's sockets."""
    return start_agent(host, "--allow", "nobody")


@pytest.fixture
def load_rules(host: Host) -> Iterator[Callable[..., None]]:
    """Loads egress.nft on the host, with values in the place of those that it shows."""
    if not shutil.which("nft"):
        pytest.skip("nft is missing")

    def load(ports: str = "61000-65535", address: str = "") -> None:
        text = OF_AGENT.text("egress.nft").replace("10.0.3.7", address or host.address)
        text = text.replace("sport 61000-65535", f"sport {ports}")
        text = text.replace("skuid harp", "skuid root")
        done = host.popen(["nft", "-f", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        _, said = done.communicate(text, timeout=20)
        assert done.returncode == 0, said

    yield load
    host.run(["nft", "delete", "table", "netdev", "harp_agent"], check=False)  # none without load


def segment(host: Host, mac: Optional[bytes] = None, source: str = "", port: int = 61000) -> bytes:
    """A TCP segment to a host that is not there, behind a header of virtio-net."""
    own = bytes.fromhex(host.mac.replace(":", ""))
    head = struct.pack("!BBHHHBBH", 0x45, 0, 40, 0, 0, 64, socket.IPPROTO_TCP, 0)
    head += socket.inet_aton(source or host.address) + socket.inet_aton("10.77.0.77")
    tcp = struct.pack("!HHIIBBHHH", port, 9, 0, 0, 0x50, 0x10, 0, 0, 0)
    return VNET_HEADER + b"\xff" * 6 + (mac or own) + b"\x08\x00" + head + tcp


def arp(host: Host, claims: str) -> bytes:
    own = bytes.fromhex(host.mac.replace(":", ""))
    body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 2) + own + socket.inet_aton(claims)
    return VNET_HEADER + b"\xff" * 6 + own + b"\x08\x06" + body + own + socket.inet_aton(claims)


def sends(opened: Opened, frame: bytes, interface: str = "eth0", bypass: bool = False) -> bool:
    """Whether the kernel takes a frame from a job's data socket."""
    with socket.socket(fileno=os.dup(opened.fds[1])) as data, user(NOBODY):
        data.setsockopt(SOL_PACKET, PACKET_QDISC_BYPASS, bypass)
        try:
            data.sendto(frame, (interface, struct.unpack("!H", frame[22:24])[0]))
        except OSError as failed:
            assert failed.errno == errno.ENOBUFS
            return False
        return True


# Of another user in the same namespace: a connection over lo, and a frame of a packet socket.
OTHERS = """
import ctypes, socket
ctypes.CDLL(None).setfsuid(1)
with socket.create_server(("127.0.0.1", 0)) as listener:
    socket.create_connection(listener.getsockname()).close()
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as raw:
    raw.sendto(bytes(12) + b"\\x08\\x00" + bytes(60), ("eth0", 0x800))
print("unharmed")
"""


def test_rules_leave_only_the_jobs_own_frames(
    host: Host, agent: AgentProcess, load_rules: Callable[..., None]
) -> None:
    """Without them a job sends any frame to any interface."""
    others = [
        (segment(host, source="10.77.0.2"), "eth0"),
        (segment(host, port=22), "eth0"),
        (arp(host, "10.77.0.2"), "eth0"),
        (segment(host), "lo"),
    ]
    with Client(agent.socket, NOBODY) as client:
        opened = client.open()
        assert all(sends(opened, *one, bypass=b) for one in others for b in (False, True))
        load_rules()
        assert not any(sends(opened, *one, bypass=b) for one in others for b in (False, True))
        for frame in (segment(host), arp(host, host.address)):
            assert sends(opened, frame) and sends(opened, frame, bypass=True)
        opened.close()
    assert host.run([sys.executable, "-c", OTHERS], timeout=30).stdout == "unharmed\n"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["packet", "xdp", "xdp,send=xdp"])
def test_jobs_run_behind_the_rules(
    lab: Lab, agent: AgentProcess, start_agent: StartAgent, start_pods: Pods,
    load_rules: Callable[..., None], scheme: str,
) -> None:  # fmt: skip
    """An AF_XDP socket sends past them, whatever they say."""
    past = scheme == "xdp,send=xdp"
    load_rules("1-2" if past else "61000-65535")
    agents = [agent, start_agent(lab.hosts[1], "--allow", "nobody")]
    options = {"device": "xdp:eth0,send=xdp"} if past else {"scheme": scheme}
    ranks = start_pods(agents, "all_reduce", "-b", "8", "-e", "1M", **options)
    for rank in ranks:
        assert rank.wait(60) == 0, rank.lines()
        assert all(wrong == 0 for wrong in rank.wrong())


# -- options of a packet socket

TRY = """
import errno, os, socket, struct, sys
data = socket.socket(fileno=int(sys.argv[1]))
index = socket.if_nametoindex("eth0")
promiscuous = struct.pack("IHH8s", index, 1, 0, b"")
ring = struct.pack("IIII", 1 << 20, 16, 2048, (1 << 20) * 16 // 2048)
for level, name, value in ((263, 1, promiscuous), (263, 5, ring), (1, 8, struct.pack("i", 1 << 20)),
                           ((1 << 32) + 263, 1, promiscuous)):
    try:
        if level < 1 << 32:
            data.setsockopt(level, name, value)
        else:  # the kernel looks at the lower half only
            import ctypes
            libc = ctypes.CDLL(None, use_errno=True)
            number = {"x86_64": 54, "aarch64": 208}[os.uname().machine]
            if libc.syscall(ctypes.c_long(number), ctypes.c_long(data.fileno()),
                            ctypes.c_long(level), ctypes.c_long(name), value,
                            ctypes.c_long(len(value))):
                raise OSError(ctypes.get_errno(), "")
        print("done")
    except OSError as failed:
        print(errno.errorcode[failed.errno])
"""


def try_options(host: Host, opened: Opened, *prefix: str) -> list[str]:
    """The outcome of promiscuous mode, a receive ring, a receive buffer, and promiscuous mode by
    another number for the same level."""
    fd = os.dup(opened.fds[1])
    os.set_inheritable(fd, True)
    nobody = ["setpriv", "--reuid", str(NOBODY), "--clear-groups", "--bounding-set=-all"]
    args = [*nobody, *prefix, PYTHON, "-c", TRY, str(fd)]
    done = subprocess.run(
        host.command(args), pass_fds=[fd], capture_output=True, text=True, timeout=30, check=False
    )
    os.close(fd)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def confined(folder: Path) -> list[str]:
    """Runs a command under seccomp.json."""
    here = Path(__file__).with_name("seccomp_run.py")
    program, rules = folder / here.name, folder / "seccomp.json"
    shutil.copy(here, program)
    rules.write_text(OF_AGENT.text("seccomp.json"))
    return [PYTHON, str(program), str(rules)]


def test_seccomp_rules_close_options_of_packet_sockets(
    host: Host, agent: AgentProcess, confined: list[str]
) -> None:
    with Client(agent.socket, NOBODY) as client:
        opened = client.open()
        closed = try_options(host, opened, *confined)
        assert closed == ["EPERM", "EPERM", "done", "EPERM"]
        assert try_options(host, opened) == ["done", "done", "done", "done"]
        opened.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["packet", "xdp"])
def test_jobs_run_under_the_seccomp_rules(
    lab: Lab, start_agent: StartAgent, start_pods: Pods, confined: list[str], scheme: str
) -> None:
    agents = [start_agent(host, "--allow", "nobody") for host in lab.hosts]
    args = ["all_reduce", "-b", "8", "-e", "1M"]
    ranks = start_pods(agents, *args, scheme=scheme, prefix=confined)
    for rank in ranks:
        assert rank.wait(60) == 0, rank.lines()
        assert all(wrong == 0 for wrong in rank.wrong())


def test_jobs_with_addresses_of_their_own_start_behind_the_rules(
    lab: Lab, load_rules: Callable[..., None], start_agent: StartAgent, start_pods: Pods
) -> None:
    """They probe their addresses from 0.0.0.0 (RFC 5227)."""
    agents = [
        start_agent(host, "--allow", "nobody", "--address", "10.77.0.0/24") for host in lab.hosts
    ]
    load_rules(ports="1-65535", address=lab.hosts[0].own_address)
    ranks = start_pods(agents, "all_reduce", "-b", "8", "-e", "64K", own_address=True)
    for rank in ranks:
        assert rank.wait(60) == 0, rank.lines()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["packet", "xdp"])
def test_two_ranks_of_a_node_under_the_seccomp_rules(
    lab: Lab, start_agent: StartAgent, start_pods: Pods, confined: list[str], scheme: str
) -> None:
    """The agent has set up the packet socket by which the ranks of a node reach each other."""
    agent = start_agent(lab.hosts[0], "--allow", "nobody")
    args = ["all_reduce", "-b", "8", "-e", "1M"]
    ranks = start_pods([agent] * 2, *args, scheme=scheme, prefix=confined)
    for rank in ranks:
        assert rank.wait(60) == 0, rank.lines()
        assert all(wrong == 0 for wrong in rank.wrong())
