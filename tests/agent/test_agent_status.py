# SPDX-License-Identifier: Apache-2.0
"""`harp agent status` and the agent's metrics."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
from agents import AgentProcess
from raw_client import Client, opening, refusal

from harp.agent import metrics, server
from tools.hosts.lab import Lab

NOBODY, UNSERVED_USER = 65534, 54321


def shown(lab: Lab, agent: AgentProcess, *options: str) -> str:
    args = [sys.executable, "-m", "harp", "agent", "--socket", str(agent.socket), "status"]
    return lab.hosts[0].run([*args, *options], timeout=30).stdout


def samples(text: str) -> dict[str, float]:
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_metrics_count_clients_grants_requests_and_refusals(
    lab: Lab, start_agent: Callable[..., AgentProcess]
) -> None:
    agent = start_agent(lab.hosts[0], "--allow", "nobody", "--ports", "61000-61511")
    before = samples(shown(lab, agent, "--prometheus"))
    assert all(before[f"harp_agent_{name}_total"] == 0 for name in server.COUNTS[1:])
    with Client(agent.socket, NOBODY) as client:
        opened = client.open()
        refusal(agent.socket, opening(), NOBODY)  # no ports are left
        refusal(agent.socket, b"x", NOBODY)
        refusal(agent.socket, opening(), UNSERVED_USER)
        text = shown(lab, agent, "--prometheus")
        after = samples(text)
        opened.close()
    wanted = {"granted": 1, "exhausted": 1, "malformed": 1, "denied": 1, "refused": 0}
    assert {name: after[f"harp_agent_{name}_total"] for name in wanted} == wanted
    assert after["harp_agent_requests_total"] == before["harp_agent_requests_total"] + 5
    assert after["harp_agent_grants"] == 1 and after["harp_agent_clients"] == 2
    assert f'harp_agent_info{{pid="{agent.process.pid}",protocol="1"}}' in after
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert names == {name.partition("{")[0] for name in after}
    plain = shown(lab, agent)
    assert "clients:" in plain and "denied:1" in plain and "exhausted:1" in plain


def test_every_count_has_a_sentence() -> None:
    assert set(metrics.SENTENCES) == {f"harp_agent_{name}_total" for name in server.COUNTS}


def test_one_format_at_a_time(lab: Lab, start_agent: Callable[..., AgentProcess]) -> None:
    agent = start_agent(lab.hosts[0])
    assert json.loads(shown(lab, agent, "--json"))["counts"]["granted"] == 0
    with pytest.raises(Exception, match="--json and --prometheus: give one"):
        shown(lab, agent, "--json", "--prometheus")
