# SPDX-License-Identifier: Apache-2.0
"""Jobs without any privilege, whose sockets the node's agent opens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from agents import AgentProcess, Pods
from long_frames import long_frames
from ranks import Rank, packet_site, preloads

from harp import paths
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
    args = ["all_reduce", "-b", "8", "-e", "4M"]
    instances = 2 if device.endswith("instances") else 1
    scheme = device.split()[0]
    finish(start_pods(agents, *args, own_address=own_address, scheme=scheme, instances=instances))
    for agent in agents:
        assert agent.ask()["counts"]["granted"] == 1
        wait_until(lambda: not agent.ask()["grants"], 20, "the agent keeps the grant of a dead job")


@preloads
def test_small_block_leaves_one_instance(
    lab: Lab, tmp_path: Path, start_agent: Callable[..., AgentProcess]
) -> None:
    """The rank sees 64 CPUs by a preloaded library. The agent has only one block, and gives it
    again at once."""
    agent = start_agent(lab.hosts[0], "--ports", "61000-61063", "--block", "64")
    site = packet_site(tmp_path, lab.hosts[0]).configure(
        f"device = packet:{lab.hosts[0].interface}\n"
    )
    library = paths.build_dir() / "tests/hosts/libno_fanout.so"
    site.environment.update({"LD_PRELOAD": str(library), "HARP_AGENT": str(agent.socket)})
    with Rank(site) as rank:
        rank.init()
        (warning,) = rank.warnings
        assert "has one instance instead of 4: the agent gives this rank 64 local ports" in warning
        (process,) = site.published()
        assert len(process.instances) == 1
        assert len(agent.ask()["grants"]) == 1


@preloads
def test_agent_tells_that_device_has_tso(
    lab: Lab, tmp_path: Path, start_agent: Callable[..., AgentProcess]
) -> None:
    """The rank's long frames are linear then. Without TSO they go in pages."""
    agent = start_agent(lab.hosts[0])
    sent = long_frames(lab, tmp_path, "nothing", str(agent.socket))
    assert agent.ask()["counts"]["granted"] == 1
    assert "l" in sent
