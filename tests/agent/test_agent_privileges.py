# SPDX-License-Identifier: Apache-2.0
"""The privileges of the agent, of harp-agent-open and of a job, as the kernel shows them."""

from __future__ import annotations

import json
import os
import pwd
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from agents import AgentProcess, Pods
from raw_client import Client

from harp.agent.privileges import PrivilegeError, User, prepare_folder
from harp.cli.agent import agent as command
from tools.hosts.lab import Host, Lab
from tools.hosts.ranks import wait_until

NOBODY = 65534
NET_ADMIN, NET_RAW, IPC_LOCK, BPF = 12, 13, 14, 39  # capability.h
SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def status(pid: int) -> dict[str, str]:
    """The fields of proc_pid_status(5)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def bits(text: str) -> set[int]:
    return {bit for bit in range(64) if int(text, 16) >> bit & 1}


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def expected() -> set[int]:
    """Where the limit of locked memory cannot be raised, the agent keeps CAP_IPC_LOCK."""
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY,) * 2)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, before)
    except (ValueError, OSError):
        return {NET_ADMIN, NET_RAW, BPF, IPC_LOCK}
    return {NET_ADMIN, NET_RAW, BPF}


@pytest.mark.parametrize("name", ["root", "daemon", "54322"])
def test_agent_has_three_capabilities(lab: Lab, folder: Path, name: str) -> None:
    """A user without a name has the group of its number."""
    check = ["setpriv", "--reuid", name, "--clear-groups", sys.executable, "-m", "harp", "--help"]
    if subprocess.run(check, capture_output=True, check=False).returncode:
        pytest.skip(f"{name} may not read this checkout")
    home = folder / "new"
    with AgentProcess(folder, lab.hosts[0], "--user", name, home=home) as agent:
        fields = status(agent.process.pid)
        for one in SETS:
            assert bits(fields[one]) == expected(), one
        uid = name if name.isdecimal() else str(pwd.getpwnam(name).pw_uid)
        assert fields["Uid"].split() == [uid] * 4
        assert fields["NoNewPrivs"] == "1"
        assert home.stat().st_uid == int(uid)
        with Client(agent.socket) as client:
            client.open().close()
        agent.stop()
    assert not agent.socket.exists()
    assert home.stat().st_mode & 0o777 == 0o755


def test_job_has_no_privilege(lab: Lab, start_agent: Callable[..., AgentProcess],
                              start_pods: Pods) -> None:  # fmt: skip
    agent = start_agent(lab.hosts[0], "--allow", "nobody")
    (rank,) = start_pods([agent], "all_reduce", nranks=2)
    wait_until(lambda: agent.ask()["grants"], 20, "the rank opens no device")
    (pid,) = children(rank.process.pid)
    fields = status(pid)
    assert fields["Name"] == "harp-perf" and fields["NoNewPrivs"] == "1"
    assert fields["Uid"].split() == [str(NOBODY)] * 4 and fields["Groups"] == ""
    for one in SETS:
        assert bits(fields[one]) == set(), one
    interfaces = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]
    for kind in ("net", "mnt", "pid"):
        assert os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
    (grant,) = agent.ask()["grants"]
    assert grant["pid"] == pid and grant["uid"] == NOBODY


# -- harp agent status


def harp_status(host: Host, agent: AgentProcess, *options: str, check: bool = True) -> str:
    args = [sys.executable, "-m", "harp", "agent", "--socket", str(agent.socket), "status"]
    done = host.run([*args, *options], timeout=30, check=check)
    return done.stdout if check else done.stderr


def test_status_shows_grants(lab: Lab, start_agent: Callable[..., AgentProcess]) -> None:
    host = lab.hosts[0]
    agent = start_agent(host, "--allow", "nobody", "--address", "10.77.0.96/28", "--block", "64")
    with Client(agent.socket, NOBODY) as client:
        opened = [client.open(), client.open(address=host.own_address)]
        text = harp_status(host, agent)
        state = json.loads(harp_status(host, agent, "--json"))
        pid = os.getpid()
        assert f"agent pid {agent.process.pid}, protocol 1, {agent.socket}" in text
        assert "serves: nobody" in text and "devices: eth0" in text
        assert "ports 61000-65535, 64 for each device of a process" in text
        mine = f"pid {pid} uid {NOBODY}: eth0, address"
        assert f"{mine} kernel, ports 61000-61063" in text
        assert f"{mine} {host.own_address}, all ports" in text
        assert state["pid"] == agent.process.pid and state["version"] == 1
        assert state["granted"] == len(state["grants"]) == 2
        assert state["grants"][0] == {
            "interface": "eth0", "address": "kernel", "ports": [61000, 61063], "pid": pid,
            "uid": NOBODY,
        }  # fmt: skip
        assert state["counts"]["granted"] == 2 and state["connections"] == 2
        for one in opened:
            one.close()


def test_status_without_agent_has_remedy(
    lab: Lab, start_agent: Callable[..., AgentProcess]
) -> None:
    agent = start_agent(lab.hosts[0])
    agent.stop()
    said = harp_status(lab.hosts[0], agent, check=False)
    assert str(agent.socket) in said and "is harp agent running on this node?" in said


def test_status_asks_the_agent_of_the_environment(
    lab: Lab, start_agent: Callable[..., AgentProcess]
) -> None:
    """--socket goes before HARP_AGENT."""
    host, agent = lab.hosts[0], start_agent(lab.hosts[0])
    args = [sys.executable, "-m", "harp", "agent"]
    done = host.run([*args, "status"], {"HARP_AGENT": str(agent.socket)}, timeout=30)
    assert f"agent pid {agent.process.pid}, protocol 1, {agent.socket}" in done.stdout
    args += ["--socket", str(agent.socket), "status"]
    again = host.run(args, {"HARP_AGENT": "/nowhere"}, timeout=30).stdout
    assert again.startswith(done.stdout.splitlines()[0])


# -- the folder of the socket


def test_new_folder_belongs_to_the_agents_user(folder: Path) -> None:
    user = User.find("daemon")
    prepare_folder(folder / "a" / "b", user)
    assert (folder / "a" / "b").stat().st_uid == user.uid
    prepare_folder(folder / "a" / "b", user)


def test_folder_of_another_user_is_refused(folder: Path) -> None:
    (folder / "a").mkdir(mode=0o755)
    with pytest.raises(PrivilegeError, match="belongs to uid 0, but the agent runs as daemon"):
        prepare_folder(folder / "a", User.find("daemon"))
    assert (folder / "a").stat().st_uid == 0


# -- the agent's user


def test_agent_has_a_user_of_its_own() -> None:
    """Other pods run as nobody, too: they could kill the agent and replace its socket."""
    for name in ("nobody", str(NOBODY)):
        with pytest.raises(PrivilegeError, match="name a user that nothing else runs as"):
            User.find(name)
    with pytest.raises(PrivilegeError, match="useradd --system .* nosuch.*--user"):
        User.find("nosuch")
    assert User.find("54322") == User(54322, 54322, "")
    assert User.find("1") == User.find("daemon")


def test_default_user_is_none_that_others_use(lab: Lab, folder: Path) -> None:
    args = [sys.executable, "-m", "harp", "agent", "--socket", str(folder / "new" / "a.sock")]
    done = lab.hosts[0].run([*args, "--user", "nobody"], timeout=30, check=False)
    assert done.returncode == 1 and "name a user that nothing else runs as" in done.stderr
    default = {one.name: one.default for one in command.params}["user"]
    assert default == "harp"


def test_agent_without_allowed_users_says_so(
    lab: Lab, start_agent: Callable[..., AgentProcess]
) -> None:
    agent = start_agent(lab.hosts[0])
    agent.wait_for_line("serves root only; name users and groups with --allow", 10)
