# SPDX-License-Identifier: Apache-2.0
"""The agent beside interfaces that get another name, or go away, while jobs use them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from agents import AgentProcess
from raw_client import Client, Refused, listening

from tools.hosts.lab import Host, Lab
from tools.hosts.ranks import wait_until


@pytest.fixture
def host(make_lab: Callable[..., Lab]) -> Host:
    """A host whose interface a test may change."""
    return make_lab(hosts=2, wire="veth-1500").hosts[0]


@pytest.fixture
def agent(host: Host, start_agent: Callable[..., AgentProcess]) -> AgentProcess:
    return start_agent(host, "--device", "new0")


def rename(host: Host, new: str) -> None:
    for args in (["down"], ["name", new]):
        host.run(["ip", "link", "set", host.interface, *args])
    host.run(["ip", "link", "set", new, "up"])


def add_interface(host: Host, name: str) -> None:
    host.run(["ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}-peer"])
    for one in (name, f"{name}-peer"):
        host.run(["ip", "link", "set", one, "up"])
    host.run(["ip", "address", "add", "10.78.0.1/24", "dev", name])


@pytest.mark.parametrize("scheme", [pytest.param("packet", marks=pytest.mark.slow), "xdp"])
def test_renamed_interface_gives_no_port_twice(
    host: Host, agent: AgentProcess, scheme: str
) -> None:
    """A running job gets more of its ports by the name that it knows."""
    with Client(agent.socket) as first, Client(agent.socket) as second:
        opened = first.open(device=f"{scheme}:{host.interface}")
        rename(host, "new0")
        other = second.open("new0")
        assert other.first > opened.last
        listeners = first.listen(opened)
        assert len(listeners.fds) == 16
        shown = {grant["interface"] for grant in agent.ask()["grants"]}
        assert shown == {"new0"}
        for one in (opened, other, listeners):
            one.close()
    wait_until(lambda: not agent.ask()["grants"], 20, "the agent keeps a grant")


def test_listeners_keep_the_address_of_the_grant(
    host: Host, start_agent: Callable[..., AgentProcess]
) -> None:
    """The job has its ports at the address that the interface had first. The kernel must not reset
    the segments that come there. An agent that has restarted knows the address, too."""
    agent = start_agent(host)
    with Client(agent.socket) as client:
        opened = client.open()
        host.run(["ip", "addr", "add", "169.254.3.3/16", "dev", "eth0", "scope", "link"])
        listeners = [client.listen(opened)]
    agent.stop()
    agent = start_agent(host)
    with Client(agent.socket) as client:
        later = listening(opened, first=opened.first + 16)
        listeners.append(client.ask(later))
        at = {
            line.split()[3].rpartition(":")[0]
            for line in host.run(["ss", "-Hltn"]).stdout.splitlines()
        }
        assert at == {host.address}
        for one in (opened, *listeners):
            one.close()


@pytest.mark.slow
def test_process_tells_its_grants_on_interfaces_of_one_name_apart(
    host: Host, agent: AgentProcess
) -> None:
    """It names a grant by the first name of the interface and the ports."""
    with Client(agent.socket) as first, Client(agent.socket) as second:
        opened = first.open(device=f"packet:{host.interface}")
        rename(host, "new0")
        add_interface(host, host.interface)
        other = second.open(device=f"packet:{host.interface}")
        assert other.first > opened.last
        for one in (opened, other):
            one.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["packet", "xdp"])
def test_grant_ends_with_its_removed_interface(
    host: Host, agent: AgentProcess, scheme: str
) -> None:
    """The agent goes on, and says what is missing."""
    with Client(agent.socket) as client:
        opened = client.open(device=f"{scheme}:{host.interface}")
        host.run(["ip", "link", "del", host.interface])
        with pytest.raises(Refused, match="eth0"):
            client.listen(opened)
        with pytest.raises(Refused, match="eth0"):
            client.open(device=f"{scheme}:{host.interface}")
        add_interface(host, host.interface)
        with pytest.raises(Refused, match="has no ports"):  # of the new interface
            client.listen(opened)
        opened.close()
    wait_until(lambda: not agent.ask()["grants"], 20, "the agent keeps a grant")
