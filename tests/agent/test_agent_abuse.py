# SPDX-License-Identifier: Apache-2.0
"""Clients that send anything, stall, or are killed: the agent's memory and descriptors stay
bounded, and jobs run on.

HARP_TEST_FULL=1: a million requests, and more deaths.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from agents import AgentProcess, Pods, descriptors, payload
from raw_client import Client, Refused, opening, packet_inodes, refusal

from tools.hosts.lab import Lab
from tools.hosts.ranks import Perf, wait_until

FULL = bool(os.environ.get("HARP_TEST_FULL"))
REQUESTS = 1_000_000 if FULL else 20_000
STALLED = 1000
DEATHS = 200 if FULL else 8
GROWTH_KIB = 8192
CONNECTIONS = 128  # of a user
NOBODY, DAEMON, UNSERVED_USER = 65534, 1, 54321


@pytest.fixture
def agent(lab: Lab, start_agent: Callable[..., AgentProcess]) -> AgentProcess:
    return start_agent(lab.hosts[0], "--allow", "nobody", "--address", "10.77.0.0/24")


def rss_kib(agent: AgentProcess) -> int:
    text = Path(f"/proc/{agent.process.pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0])


def openers(agent: AgentProcess) -> list[str]:
    """The agent's children."""
    pid = agent.process.pid
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):
            found += (task / "children").read_text().split()
    return found


@contextmanager
def unharmed(agent: AgentProcess) -> Iterator[None]:
    """Afterwards the agent has the grants, sockets and descriptors of before, and no child."""
    granted, sockets = agent.ask()["granted"], packet_inodes(agent.process.pid)
    time.sleep(0.05)  # until the agent has closed the connection of the query
    before = descriptors(agent.process)
    yield
    wait_until(lambda: agent.ask()["granted"] == granted, 20, "grants are left")
    wait_until(lambda: packet_inodes(agent.process.pid) == sockets, 20, "packet sockets are left")
    wait_until(lambda: not openers(agent), 20, "harp-agent-open is left")
    wait_until(lambda: descriptors(agent.process) <= before, 20, "descriptors are left")
    assert not agent.lines("Traceback") and not agent.lines("never retrieved")


def finish(ranks: list[Perf]) -> None:
    for rank in ranks:
        assert rank.wait(100) == 0, rank.lines()
        assert all(wrong == 0 for wrong in rank.wrong()) and not rank.warnings


# -- requests


def garbage(chance: random.Random) -> bytes:
    """Some bytes, a request with damaged bytes, or one with wrong members."""
    kind = chance.randrange(4)
    if kind == 0:
        return chance.randbytes(chance.randrange(1, 1200))
    members = opening(
        interface=chance.choice(["eth0", "", "lo\0", "\x1b[2J", "e" * 15, "\ud800"]),
        queues=chance.choice([0, 1, 9, -1, 10**30, 1.5, None]),
        version=chance.choice([0, 1, 2, "1"]),
    )
    if kind == 1:
        return json.dumps({**members, "address": chance.choice(["0.0.0.0", "kernel", {}])}).encode()
    if kind == 2:
        return json.dumps({"version": 1, "op": chance.choice(["hello", "stop", ["open"]])}).encode()
    data = bytearray(json.dumps(opening(queues=0)).encode())
    data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


@pytest.mark.slow
@pytest.mark.timeout(3600 if FULL else 300)
def test_random_requests_need_bounded_memory(
    lab: Lab, agent: AgentProcess, start_agent: Callable[..., AgentProcess], start_pods: Pods
) -> None:
    """Jobs begin, run and end meanwhile."""
    agents = [agent, start_agent(lab.hosts[1], "--allow", "nobody")]
    job = ["sendrecv_bidir", "-b", "64K", "-e", "64K", "-n", "2000" if FULL else "100"]
    job += ["--verified", "--rate", "0.05", "--rest"]  # leaves the processors to the agent
    chance = random.Random(17)
    data = memoryview(bytearray(70000))
    with unharmed(agent), Client(agent.socket, NOBODY) as client:
        peer = client.connection
        ranks = start_pods(agents, *job)
        for count in itertools.count():
            if count == REQUESTS // 4:
                settled = rss_kib(agent)
            if all(rank.process.poll() is not None for rank in ranks):
                finish(ranks)
                if count >= REQUESTS:
                    break
                ranks = start_pods(agents, *job)
            peer.send(garbage(chance))
            assert peer.recv_into(data) > 0
        assert rss_kib(agent) - settled < GROWTH_KIB
    counts = agent.ask()["counts"]
    assert counts["requests"] >= REQUESTS and counts["malformed"] > REQUESTS // 2


def test_descriptors_that_clients_send_are_not_kept(agent: AgentProcess) -> None:
    with unharmed(agent), Client(agent.socket, NOBODY) as client:
        request = json.dumps({"version": 1, "op": "hello"}).encode()
        for _ in range(100):
            socket.send_fds(client.connection, [request], [0] * 100)
            assert json.loads(client.connection.recv(1000))["may"] is True


# -- clients that stall


def stall(agent: AgentProcess, uid: int, count: int, stack: ExitStack) -> list[Client]:
    """Clients that connect and send nothing, or half of a request's conversation. That of a user
    who is not served ends with the first answer, so such a user sends nothing."""
    clients = []
    for number in range(count):
        client = stack.enter_context(Client(agent.socket, uid))
        with suppress(OSError):  # it has been refused
            if uid != UNSERVED_USER and number % 3 == 1:
                client.send(b"{")
            elif uid != UNSERVED_USER and number % 3 == 2:
                client.send({"version": 1, "op": "hello"})
        clients.append(client)
    return clients


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Room for all the clients in this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2 * STALLED), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("many_descriptors")
def test_job_begins_and_runs_beside_stalled_clients(
    lab: Lab, agent: AgentProcess, start_agent: Callable[..., AgentProcess], start_pods: Pods
) -> None:
    """They come before it opens its device, and while it runs; users that the agent serves are
    among them."""
    agents = [agent, start_agent(lab.hosts[1], "--allow", "nobody")]
    users = [0, *range(UNSERVED_USER, UNSERVED_USER + 9)]
    with unharmed(agent), ExitStack() as stack:
        for uid in users:
            stall(agent, uid, STALLED // 20, stack)
        ranks = start_pods(agents, "all_reduce", "-b", "64K", "-e", "64K", "-n", "8000")
        wait_until(lambda: payload(ranks[0]), 30, "the job does not run", ranks)
        for uid in users:
            stall(agent, uid, STALLED // 20, stack)
        assert all(rank.process.poll() is None for rank in ranks), "the job was too short"
        finish(ranks)
        stack.close()
        wait_until(lambda: not agent.ask()["grants"], 10, "the grant of a dead job is kept")


def test_connections_of_a_user_are_limited(agent: AgentProcess) -> None:
    """Others are served, and the user again when some have gone. Users that the agent does not
    serve count as one."""
    with unharmed(agent), ExitStack() as stack:
        stall(agent, UNSERVED_USER, CONNECTIONS, stack)
        with Client(agent.socket, DAEMON) as more:
            with pytest.raises(Refused, match=f"does not serve have {CONNECTIONS} connections"):
                more.receive()
        stall(agent, NOBODY, CONNECTIONS - 1, stack)
        with Client(agent.socket, NOBODY) as client:
            client.open().close()
            refused = refusal(agent.socket, opening(), NOBODY)
            assert f"uid {NOBODY} has {CONNECTIONS} connections" in refused.text
        with Client(agent.socket) as client:
            client.open().close()
        assert agent.ask()["counts"]["refused"] == 2
        stack.close()
        wait_until(lambda: agent.ask()["connections"] < 5, 10, "connections are left")
        assert "does not serve" in refusal(agent.socket, opening(), UNSERVED_USER).text


def test_status_is_shown_beside_a_users_connections(agent: AgentProcess) -> None:
    """Root's jobs cannot hide it from root. The one more connection serves nothing else."""
    with unharmed(agent), ExitStack() as stack:
        stall(agent, 0, CONNECTIONS, stack)
        for _ in range(2):  # it ends after the answer
            assert agent.ask()["connections"] == CONNECTIONS + 1
        with Client(agent.socket) as spare:
            with pytest.raises(Refused, match=f"uid 0 has {CONNECTIONS} connections"):
                spare.open()
            with pytest.raises((EOFError, ConnectionError)):
                spare.open()
        with Client(agent.socket) as spare, Client(agent.socket) as more:
            with pytest.raises(Refused, match=f"uid 0 has {CONNECTIONS} connections"):
                more.receive()
            spare.send({"version": 1, "op": "status"})
            assert spare.connection.recv(1 << 16)
        stack.close()
        wait_until(lambda: agent.ask()["connections"] < 5, 10, "connections are left")


def test_queue_of_connections_is_emptied(lab: Lab, agent: AgentProcess) -> None:
    """Clients connect and go faster than the agent accepts."""
    with unharmed(agent):
        for _ in range(2000):
            Client(agent.socket, UNSERVED_USER).connection.close()


# -- clients that are killed

STEPS = ("connect", "half", "send", "reply", "unread", "listen", "held")
VICTIM = """
import contextlib, sys, time
from raw_client import Client, Refused, listening, opening
path, device, step = sys.argv[1:]
def at(reached):
    if step == reached:
        print("here", flush=True)
        time.sleep(60)
client = Client(path)
at("connect")
if step == "half":
    client.connection.send(b'{"version":1,"op":"op')
at("half")
client.send(opening(device=device))
at("send")
opened = client.receive()
at("reply")
client.send(opening(device=device))
time.sleep(0.05)
at("unread")
with contextlib.suppress(Refused):  # the interface has one xdp device at a time
    client.receive()
client.send(listening(opened, 64, device=device))
at("listen")
held = client.receive()
at("held")
"""


def kill_clients(
    agent: AgentProcess, chance: random.Random, step: str, device: str, count: int
) -> None:
    """Clients reach a step. Their death comes at once, or a random moment later."""
    code = [sys.executable, "-c", VICTIM, str(agent.socket), device, step]
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path}
    victims = [
        subprocess.Popen(code, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for victim in victims:
        assert victim.stdout and victim.stdout.readline() == "here\n"
        time.sleep(chance.choice([0, chance.random() / 100]))
        victim.kill()
        victim.communicate()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", STEPS)
def test_killed_client_leaves_nothing(agent: AgentProcess, step: str) -> None:
    chance = random.Random(step)
    with unharmed(agent):
        for _ in range(DEATHS // 4):
            kill_clients(agent, chance, step, "packet:eth0", 4)
    with Client(agent.socket) as client:
        opened = client.open()
        assert opened.first == 61000, "the first block is free again"
        opened.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_client_of_an_xdp_device_leaves_nothing(lab: Lab, agent: AgentProcess) -> None:
    """The interface has one xdp device at a time: each client opens it after the death of the one
    before."""
    chance = random.Random(3)
    for step in STEPS * (DEATHS // 8):
        with unharmed(agent):
            kill_clients(agent, chance, step, "xdp:eth0", 1)
            wait_until(
                lambda: not lab.hosts[0].has_xdp_program(), 20, f"{step}: the program is left"
            )
    with Client(agent.socket) as client:
        opened = client.open(device="xdp:eth0")
        assert lab.hosts[0].has_xdp_program()
        opened.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_ranks_leave_nothing(lab: Lab, agent: AgentProcess, start_pods: Pods) -> None:
    """The real client, killed in the middle of its start."""
    chance = random.Random(5)
    with unharmed(agent):
        for _ in range(DEATHS // 3):
            (rank,) = start_pods([agent], "all_reduce", nranks=2)
            time.sleep(chance.random() * 0.4)
            rank.signal(signal.SIGKILL)
            rank.wait(20)
    assert agent.ask()["counts"]["granted"] >= 1
