# SPDX-License-Identifier: Apache-2.0
"""Jobs without any privilege, whose sockets the node's agent opens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from agents import AgentProcess, Pods

from tools.hosts.lab import Lab
from tools.hosts.ranks import Perf, wait_until

# Pairs whose device and address other pairs have, too: tools/test --fast leaves them out.
REPEATS = (pytest.mark.slow, pytest.mark.sanitized)


def finish(ranks: list[Perf], timeout: float = 60) -> None:
    for rank in ranks:
        assert rank.wait(timeout) == 0, rank.lines()
    assert all(wrong == 0 for rank in ranks for wrong in rank.wrong())


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("device", "own_address"),
    [
        pytest.param("packet", False, id="packet-kernel"),
        pytest.param("packet", True, id="packet-own", marks=REPEATS),
        pytest.param("packet of two instances", False, id="packet of two instances-kernel"),
        pytest.param(
            "packet of two instances", True, id="packet of two instances-own", marks=REPEATS
        ),
        pytest.param("xdp", False, id="xdp-kernel", marks=REPEATS),
        pytest.param("xdp", True, id="xdp-own"),
    ],
)
def test_all_reduce_of_pods_without_network(
    lab: Lab,
    start_agent: Callable[..., AgentProcess],
    start_pods: Pods,
    own_address: bool,
    device: str,
) -> None:
    options = ["--allow", "nobody", "--address", "10.77.0.0/24"]
    agents = [start_agent(host, *options) for host in lab.hosts]
    words = ["all_reduce", "-b", "8", "-e", "4M"]
    instances = 2 if device.endswith("instances") else 1
    scheme = device.split()[0]
    finish(start_pods(agents, *words, own_address=own_address, scheme=scheme, instances=instances))
    for agent in agents:
        assert agent.ask()["counts"]["granted"] == 1
        wait_until(lambda: not agent.ask()["grants"], 20, "the agent keeps the grant of a dead job")
