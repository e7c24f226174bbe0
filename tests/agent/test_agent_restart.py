# SPDX-License-Identifier: Apache-2.0
"""An agent that ends and starts again, also in a later version: running jobs notice nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from agents import AgentProcess, Pods, payload
from raw_client import Client, Refused, opening, refusal

from tools.hosts.lab import Host, Lab
from tools.hosts.ranks import Perf, wait_until

OPTIONS = ["--allow", "nobody", "--address", "10.77.0.0/24"]
# Each rank needs more local ports than the first block of listeners.
MANY_LINKS = ["--channels", "8", "--flows", "8"]
ENDS = pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
OTHER = pytest.mark.skipif(
    not os.environ.get("HARP_TEST_FULL"), reason="takes seconds; HARP_TEST_FULL=1"
)
StartAgent = Callable[..., AgentProcess]


def end(agent: AgentProcess, how: int) -> None:
    agent.signal(how)
    agent.wait(20)


def restart(
    agents: list[AgentProcess], start: StartAgent, hosts: list[Host], how: int, newer: bool
) -> list[AgentProcess]:
    for agent in agents:
        end(agent, how)
    return [start(host, *OPTIONS, newer=newer) for host in hosts]


def opened(rank: Perf) -> None:
    """Waits until the rank has the agent's answer: it publishes its statistics afterwards."""
    wait_until(rank.site.published, 20, "the rank opens no device", [rank])


def finish(ranks: list[Perf]) -> None:
    for rank in ranks:
        assert rank.wait(90) == 0, rank.lines()
        assert all(wrong == 0 for wrong in rank.wrong())
        assert not rank.warnings


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("how", "scheme"),
    [
        pytest.param(signal.SIGTERM, "packet", id="term-packet"),
        pytest.param(signal.SIGKILL, "xdp", id="kill-xdp"),
        pytest.param(signal.SIGKILL, "packet", id="kill-packet", marks=OTHER),
        pytest.param(signal.SIGTERM, "xdp", id="term-xdp", marks=OTHER),
    ],
)
def test_jobs_survive_newer_agents(
    lab: Lab, start_agent: StartAgent, start_pods: Pods, how: int, scheme: str
) -> None:
    """Rank 0 opens its device, and needs most of its local ports after the restart. A second
    restart comes in the middle of the traffic."""
    agents = [start_agent(host, *OPTIONS) for host in lab.hosts]
    args = ["all_reduce", "-b", "256K", "-e", "256K", "-n", "500", "-w", "1", *MANY_LINKS]
    args += ["--verified", "--rate", "0.2"]  # takes five seconds
    ranks = start_pods(agents[:1], *args, nranks=2, scheme=scheme)
    opened(ranks[0])
    before = agents[0].ask()["grants"]
    agents = restart(agents, start_agent, lab.hosts, how, newer=True)
    assert agents[0].ask()["version"] == 2
    assert agents[0].ask()["grants"] == before
    ranks += start_pods(agents[1:], *args, nranks=2, first=1, scheme=scheme)
    wait_until(lambda: payload(ranks[0]) > 1 << 20, 60, "no traffic", ranks)
    begun = payload(ranks[0])
    assert agents[0].ask()["counts"]["requests"] > 1, "no ports were needed after the restart"
    agents = restart(agents, start_agent, lab.hosts, how, newer=False)
    wait_until(
        lambda: payload(ranks[0]) > begun or ranks[0].process.poll() is not None,
        30, "the traffic stands",
    )  # fmt: skip
    finish(ranks)
    for agent in agents:
        wait_until(lambda: not agent.ask()["grants"], 10, "the grant of a dead job is kept")


@pytest.mark.slow
def test_rank_waits_for_agent_that_is_away(
    lab: Lab, start_agent: StartAgent, start_pods: Pods
) -> None:
    agents = [start_agent(host, *OPTIONS) for host in lab.hosts]
    args = ["sendrecv", "-b", "64K", "-e", "64K", *MANY_LINKS]
    ranks = start_pods(agents[:1], *args, nranks=2)
    opened(ranks[0])
    end(agents[0], signal.SIGTERM)
    ranks += start_pods(agents[1:], *args, nranks=2, first=1)
    wait_until(lambda: agents[1].ask()["counts"].get("granted"), 20, "rank 1 opens no device")
    time.sleep(1.5)  # rank 0 needs local ports now
    agent = start_agent(lab.hosts[0], *OPTIONS)
    finish(ranks)
    assert agent.ask()["counts"]["requests"] > 1


@ENDS
def test_grants_of_living_jobs_are_kept(lab: Lab, start_agent: StartAgent, how: int) -> None:
    host = lab.hosts[0]
    agent = start_agent(host, *OPTIONS)
    with Client(agent.socket) as client:
        living, ended = client.open(), client.open()
        own = client.open(address=host.own_address)
        held = client.listen(living)
        end(agent, how)
        ended.close()
        agent = start_agent(host, *OPTIONS, newer=True)
        granted = [grant["ports"][0] for grant in agent.ask()["grants"]]
        assert granted == [living.first, own.first] and ended.first not in granted
        with pytest.raises((EOFError, ConnectionError)):
            client.listen(living)
    with Client(agent.socket) as client:
        members = {"address": host.own_address}
        assert "give this job another one" in refusal(agent.socket, opening(**members)).text
        again = client.open()
        assert again.first == ended.first, "the block of the ended job is free"
        another = client.open()
        assert another.first not in (living.first, again.first)
        living.first += 16
        with pytest.raises(Refused, match="open the device first"):
            client.listen(living)
        living.first -= 16
        held.close()
        held = client.listen(living)
        assert held.port == living.first and len(held.fds) == 16
        for one in (living, own, held, again, another):
            one.close()
