# SPDX-License-Identifier: Apache-2.0
"""What harp doctor says of the agent: in a pod, and on the node."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agents import POD, AgentProcess
from raw_client import Client

from harp.agent import query
from harp.cli import doctor_agent
from harp.cli.findings import Finding
from tools.hosts.lab import Host, Lab

NOBODY = 65534
StartAgent = Callable[..., AgentProcess]
Doctor = Callable[..., dict[str, list[str]]]


@pytest.fixture
def host(lab: Lab) -> Host:
    return lab.hosts[0]


@pytest.fixture
def doctor(host: Host, folder: Path) -> Doctor:
    """Runs harp doctor on the node, or in a pod. Returns its texts by level."""
    conf = folder / "conf"
    conf.mkdir(mode=0o755)

    def run(agent: Path, device: str, *prefix: str) -> dict[str, list[str]]:
        (conf / "ztcp0.conf").write_text(f"device = {device}\n")
        where = {"HARP_AGENT": str(agent), "HARP_CONF_DIR": str(conf), "HARP_RUN_DIR": str(folder)}
        args = [*prefix, sys.executable, "-m", "harp", "doctor", "--json"]
        done = host.run(args, where, timeout=60, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        found: dict[str, list[str]] = {"ok": [], "note": [], "fault": []}
        for one in json.loads(done.stdout)["findings"]:
            found[one["level"]].append(f"{one['about']}: {one['text']}")
        return found

    return run


@pytest.fixture
def in_pod() -> tuple[str, ...]:
    check = ["setpriv", "--reuid", str(NOBODY), "--clear-groups", sys.executable, "-m", "harp"]
    if subprocess.run([*check, "--help"], capture_output=True, check=False).returncode:
        pytest.skip("nobody may not read this checkout")
    return POD


def about_host(found: dict[str, list[str]]) -> list[str]:
    """The faults, but those of the build and of other tests' ranks, which doctor finds as well."""
    others = ("plugin", "devices", "ranks")
    return [line for line in found["fault"] if not line.startswith(others)]


def has(texts: list[str], part: str) -> bool:
    return any(part in text for text in texts)


def test_pod_with_an_agent_needs_nothing_else(
    host: Host, start_agent: StartAgent, doctor: Doctor, in_pod: tuple[str, ...]
) -> None:
    agent = start_agent(host, "--allow", "nobody")
    with Client(agent.socket, NOBODY) as client:
        opened = client.open()
        for device in ("packet:eth0", "xdp:eth0,mode=copy"):
            found = doctor(agent.socket, device, *in_pod)
            assert about_host(found) == [], found
            assert has(found["ok"], f"agent: {agent.socket} serves this user, protocol 1")
            opened_here = device.partition(",")[0]
            assert has(found["ok"], f"the agent of this node opens {opened_here}")
            assert has(found["ok"], "agent: 1 devices are in use, 512 of 4536 local ports of eth0")
            assert has(found["ok"], "privileges: none are needed")
        opened.close()


def test_pod_learns_what_the_agent_refuses(
    host: Host, start_agent: StartAgent, doctor: Doctor, in_pod: tuple[str, ...]
) -> None:
    agent = start_agent(host, "--allow", "nobody")
    found = doctor(agent.socket, "packet:eth7", *in_pod)
    assert has(found["fault"], "the agent does not open packet:eth7: it serves only eth0")
    agent.stop()
    agent = start_agent(host, "--allow", "daemon")
    found = doctor(agent.socket, "packet:eth0", *in_pod)
    assert has(found["fault"], "agent: the agent does not serve user nobody")
    status = [sys.executable, "-m", "harp", "agent", "--socket", str(agent.socket), "status"]
    said = host.run([*in_pod, *status], check=False).stderr
    assert "the agent does not serve user nobody" in said
    assert "is harp agent running on this node?" not in said
    agent.stop()
    found = doctor(agent.socket, "packet:eth0", *in_pod)
    assert has(found["fault"], "start harp agent on the node and mount the folder of its socket")


def test_node_with_an_agent_is_checked_as_well(
    host: Host, start_agent: StartAgent, doctor: Doctor
) -> None:
    agent = start_agent(host)
    found = doctor(agent.socket, "packet:eth0")
    assert about_host(found) == []
    assert has(found["ok"], "agent: 0 devices are in use")
    assert has(found["ok"], "shares 10.77.0.1/24 of eth0")


def test_xdp_device_of_an_agent_needs_no_privileges(
    host: Host, start_agent: StartAgent, doctor: Doctor
) -> None:
    agent = start_agent(host)
    limited = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    found = doctor(agent.socket, "xdp:eth0", *limited)
    assert has(found["ok"], "the agent of this node opens xdp:eth0")
    assert has(found["ok"], "shares 10.77.0.1/24 of eth0")  # the node's interface is checked, too
    assert not has(found["fault"], "xdp devices need")


# -- answers of other agents


def findings(monkeypatch: pytest.MonkeyPatch, answer: Any, **more: Any) -> list[Finding]:
    state = {"ports": [61000, 65535, 512], "grants": [], "granted": 0}
    monkeypatch.setenv("HARP_AGENT", "/run/x.sock")
    monkeypatch.setattr(query, "ask", lambda _, what: answer if what == "hello" else state)
    return list(doctor_agent.check())


@pytest.mark.parametrize(
    "answer, level, said",
    [
        ({"may": True, "version": 0}, "note", "speaks protocol 0"),
        ({"may": True}, "ok", "protocol 1"),  # before it told its version
        ({"may": True, "kernel": "6.1.0-1"}, "note", "Linux 6.1 is older than 6.4"),
        ({"may": True, "kernel": "6.4.0"}, "ok", "serves this user"),
        ({"may": True, "may_lock_memory": False}, "note", "LimitMEMLOCK=infinity"),
        ([], "fault", "answers something else"),
    ],
)
def test_answer_is_judged(
    monkeypatch: pytest.MonkeyPatch, answer: Any, level: str, said: str
) -> None:
    found = findings(monkeypatch, answer)
    assert any(one.level == level and said in one.text for one in found), found
    assert level == "note" or not any(one.level == "note" for one in found)


def test_what_an_ended_agent_left_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    monkeypatch.delenv("HARP_AGENT", raising=False)
    monkeypatch.setattr(query, "SOCKET", path)
    assert list(doctor_agent.check()) == [] and doctor_agent.in_use() is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as ended:
        ended.bind(str(path))
    path.with_suffix(".grants").write_text("[{}, {}]")
    (found,) = doctor_agent.check()
    assert found.level == "note" and "its table has 2 grants" in found.text
    assert "remove the file" in found.text


def test_empty_variable_turns_the_agent_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARP_AGENT", "")
    (found,) = doctor_agent.check()
    assert found.level == "ok" and "uses its own privileges" in found.text
    assert os.environ["HARP_AGENT"] == "" and doctor_agent.in_use() is None
