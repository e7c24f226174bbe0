# SPDX-License-Identifier: Apache-2.0
"""What the agent refuses, each time in one line that says how to fix it."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from agents import AgentProcess, Pods
from raw_client import Client, listening, opening, refusal

from tools.hosts.lab import Host, Lab
from tools.hosts.ranks import wait_until

NOBODY = 65534
StartAgent = Callable[..., AgentProcess]


@pytest.fixture
def host(lab: Lab) -> Host:
    return lab.hosts[0]


def agent_args(folder: Path, *options: str) -> list[str]:
    args = [sys.executable, "-m", "harp", "agent", "--socket", str(folder / "agent0.sock")]
    return [*args, "--user", "root", *options]


def refused_start(host: Host, args: list[str], status: int = 1) -> str:
    done = host.run(args, timeout=30, check=False)
    assert done.returncode == status
    return done.stderr


def no_grants(agent: AgentProcess) -> None:
    wait_until(lambda: not agent.ask()["grants"], 20, "the agent keeps a grant that nobody has")


# -- users


def test_rank_of_unserved_user_learns_user_group_and_remedy(
    lab: Lab, host: Host, start_agent: StartAgent, start_pods: Pods
) -> None:
    agent = start_agent(host, "--allow", "daemon")
    (rank,) = start_pods([agent], "all_reduce", environment={"NCCL_DEBUG": "WARN"}, nranks=2)
    line = rank.wait_for_line("does not serve", 30)[1]
    assert "NCCL WARN" in line
    assert "user nobody (uid 65534), group nogroup (gid 65534)" in line
    assert "without a number on the node; it serves: daemon" in line and "--allow nobody" in line
    rank.end()
    assert len([said for said in rank.lines() if "does not serve" in said]) == 1
    assert agent.ask()["counts"]["denied"] >= 1 and not agent.ask()["grants"]
    agent.wait_for_line("denied to pid", 10)


@pytest.mark.parametrize("members", [{"version": 1, "op": "status"}, {"version": 1, "op": "hello"},
                                     opening(), {"version": 1, "op": "listen",
                                                 "device": "packet:eth0", "grant": [61000, 61511],
                                                 "first": 61000, "count": 1}],
                         ids=["status", "hello", "open", "listen"])  # fmt: skip
def test_unserved_user_gets_nothing(host: Host, start_agent: StartAgent, members: object) -> None:
    agent = start_agent(host, "--allow", "daemon")
    refused = refusal(agent.socket, members, uid=NOBODY)
    assert refused.number == errno.EACCES and "does not serve user nobody" in refused.text


@pytest.mark.parametrize("count", [1, 1000])
def test_further_groups_of_a_process_count(host: Host, start_agent: StartAgent, count: int) -> None:
    unserved, group = 54400, 54321
    agent = start_agent(host, "--allow", f"@{group}")
    assert refusal(agent.socket, opening(), unserved).number == errno.EACCES
    before = os.getgroups()
    os.setgroups([*range(60000, 60000 + count - 1), group])
    try:
        with Client(agent.socket, unserved) as client:
            client.open().close()
    finally:
        os.setgroups(before)


@pytest.mark.slow  # the agent counts for 5 s
def test_log_is_not_filled_by_an_unserved_user(host: Host, start_agent: StartAgent) -> None:
    agent = start_agent(host)
    for _ in range(300):
        with Client(agent.socket, NOBODY) as client:
            with pytest.raises(Exception, match="does not serve"):
                client.open()
    assert agent.ask()["counts"]["denied"] == 300
    assert len(agent.lines("denied to pid")) <= 32
    agent.wait_for_line("more lines about clients of uid 65534", 15)


# -- devices, addresses, ports


def test_requests_beyond_policy_are_denied(host: Host, start_agent: StartAgent) -> None:
    options = ["--address", "10.77.0.96/28", "--ports", "61000-61999", "--allow", "nobody"]
    agent = start_agent(host, *options)
    cases = [
        (opening("lo"), errno.EACCES, "serves only eth0; start harp agent with --device lo"),
        (opening(address="10.77.0.5"), errno.EACCES, "--address 10.77.0.5/32"),
        (opening(ports=[60999, 61000]), errno.EACCES, "start harp agent with --ports 60999-61000"),
        (opening(ports=[61999, 62000]), errno.EACCES, "remove tcp_ports"),
        (opening(mac="02:00:00:00:00:01"), errno.EACCES, "mac cannot be used"),
        (opening(address="0.0.0.0"), errno.EINVAL, "address"),
        (opening(mtu=9000), errno.EINVAL, "lower it"),
    ]
    for members, number, text in cases:
        refused = refusal(agent.socket, members, uid=NOBODY)
        assert refused.number == number and text in refused.text, refused
        assert "\n" not in refused.text
    no_grants(agent)


def test_interface_that_is_missing_or_down(host: Host, start_agent: StartAgent) -> None:
    agent = start_agent(host, "--device", "none0", "--device", "lo")
    assert "none0" in refusal(agent.socket, opening("none0")).text
    assert "not an Ethernet interface" in refusal(agent.socket, opening("lo")).text
    no_grants(agent)


def test_address_of_the_kernel_is_not_for_a_job(host: Host, start_agent: StartAgent) -> None:
    """It would see all of the node's TCP."""
    agent = start_agent(host, "--address", "10.77.0.0/24")
    refused = refusal(agent.socket, opening(address=host.address))
    assert "the kernel already uses the address" in refused.text


def test_address_of_living_job_is_not_given_twice(host: Host, start_agent: StartAgent) -> None:
    agent = start_agent(host, "--address", "10.77.0.0/24")
    with Client(agent.socket) as first:
        opened = first.open(address=host.own_address)
        refused = refusal(agent.socket, opening(address=host.own_address))
        assert refused.number == errno.EADDRINUSE and "give this job another one" in refused.text
        refusal(agent.socket, opening(address=host.own_address, ports=[1, 5]))
        opened.close()
    with Client(agent.socket) as second:  # at once, like a job that is started again
        second.open(address=host.own_address).close()


def test_quota_of_user(host: Host, start_agent: StartAgent) -> None:
    agent = start_agent(host, "--allow", "nobody", "--quota", "2")
    with Client(agent.socket, NOBODY) as client:
        opened = [client.open() for _ in range(2)]
        refused = refusal(agent.socket, opening(), uid=NOBODY)
        assert "user nobody has 2 devices open, which is its quota" in refused.text
        opened.append(Client(agent.socket).open())  # root has a quota of its own
        opened.pop(0).close()
        with Client(agent.socket, NOBODY) as other:
            opened.append(other.open())
        for one in opened:
            one.close()


def test_local_ports_of_user_are_bounded(host: Host, start_agent: StartAgent) -> None:
    """Else nine devices of one user would take the whole default range."""
    options = ["--block", "64", "--port-quota", "160", "--address", "10.77.0.0/24"]
    agent = start_agent(host, "--allow", "nobody", *options)
    with Client(agent.socket, NOBODY) as client:
        opened = [client.open() for _ in range(2)]
        refused = refusal(agent.socket, opening(), uid=NOBODY)
        assert "user nobody has 128 local ports and would get 64 more" in refused.text
        assert "--port-quota 320" in refused.text and refused.number == errno.EACCES
        opened.append(client.open(ports=[62000, 62031]))  # it fits
        assert refusal(agent.socket, opening(ports=[62064, 62064]), uid=NOBODY).number
        opened.append(client.open(address=host.own_address))  # takes none of the kernel's
        opened.append(Client(agent.socket).open())  # root has a quota of its own
        for one in opened:
            one.close()


def test_exhausted_ports(host: Host, start_agent: StartAgent) -> None:
    agent = start_agent(host, "--ports", "61000-61031", "--block", "16")
    with Client(agent.socket) as client:
        opened = [client.open() for _ in range(2)]
        assert sorted((one.first, one.last) for one in opened) == [(61000, 61015), (61016, 61031)]
        refused = refusal(agent.socket, opening())
        assert refused.number == errno.EADDRINUSE
        assert "no local ports are left" in refused.text and "--ports" in refused.text
        assert agent.ask()["counts"]["exhausted"] == 1
        for one in opened:
            one.close()
        client.open().close()


@contextmanager
def beside(host: Host, code: str, **environment: str) -> Iterator[str]:
    """Runs Python's `code`, and then keeps its process for the block. Gives its first line."""
    code += "\nimport sys; sys.stdout.flush(); sys.stdin.read()"
    pipe = subprocess.PIPE
    other = host.popen([sys.executable, "-c", code], environment, stdin=pipe, stdout=pipe)
    try:
        assert other.stdout
        yield other.stdout.readline()
    finally:
        other.kill()
        other.communicate()


def test_processes_get_disjoint_blocks(host: Host, start_agent: StartAgent) -> None:
    agent = start_agent(host, "--ports", "61000-61031", "--block", "16")
    code = (
        "from raw_client import Client\n"
        f"client = Client({str(agent.socket)!r})\n"
        "print(client.open().first)"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    with beside(host, code, PYTHONPATH=path) as first, Client(agent.socket) as client:
        assert int(first) == 61000
        opened = client.open()
        assert opened.first == 61016
        opened.close()


def test_block_with_a_port_in_use_is_skipped(host: Host, start_agent: StartAgent) -> None:
    """A job would see, and reset, that program's connection."""
    agent = start_agent(host, "--ports", "61000-61047", "--block", "16")
    code = (
        "import socket\n"
        "s = [socket.create_server(('10.77.0.1', 61007)), socket.create_server(('', 61031))]\n"
        "print('ready')"
    )
    with beside(host, code) as said, Client(agent.socket) as client:
        assert said == "ready\n"
        opened = client.open()
        assert (opened.first, opened.last) == (61032, 61047)
        assert "no local ports are left" in refusal(agent.socket, opening()).text
        refusal(agent.socket, opening(ports=[61000, 61010]))
        opened.close()


def test_listeners_need_a_grant_of_the_same_process(host: Host, start_agent: StartAgent) -> None:
    agent = start_agent(host, "--allow", "nobody")
    with Client(agent.socket) as client:
        opened = client.open()
        held = client.listen(opened, 64)
        assert len(held.fds) == 64 and held.port == opened.first
        in_use = refusal(agent.socket, listening(opened))
        assert (
            in_use.number == errno.EADDRINUSE and f"cannot hold port {opened.first}" in in_use.text
        )
        refused = refusal(agent.socket, listening(opened), uid=NOBODY)
        assert "open the device first" in refused.text
        opened.first += 1
        assert "open the device first" in refusal(agent.socket, listening(opened)).text
        for one in (opened, held):
            one.close()


def test_opens_at_the_same_time_get_different_ports(host: Host, start_agent: StartAgent) -> None:
    agent = start_agent(host, "--block", "16")
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(agent.socket)) for _ in range(12)]
        for client in clients:
            client.send(opening())
        opened = [client.receive() for client in clients]
        assert {one.first for one in opened} == set(range(61000, 61000 + 12 * 16, 16))
        for one in opened:
            one.close()


def refusals_of_another_process(agent: AgentProcess, *devices: str) -> list[tuple[str, str]]:
    """The errno and the line for each device."""
    code = (
        "import pathlib, sys\nfrom raw_client import opening, refusal\n"
        "for device in sys.argv[2:]:\n"
        "    refused = refusal(pathlib.Path(sys.argv[1]), opening(device=device))\n"
        "    print(refused.number, refused.text)"
    )
    args = [sys.executable, "-c", code, str(agent.socket), *devices]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run(
        args, env=environment, timeout=30, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return [(line.split()[0], line) for line in said.splitlines()]


def test_busy_xdp_device_is_refused_without_a_try(host: Host, start_agent: StartAgent) -> None:
    """Each further process of a host asks for it, which is no failure. A try takes half a second,
    and all others wait."""
    agent = start_agent(host)
    with Client(agent.socket) as client:
        opened = client.open(device="xdp:eth0")
        for number, line in refusals_of_another_process(agent, "xdp:eth0", "xdp:eth0,mode=copy"):
            assert int(number) == errno.EBUSY
            assert f"xdp:eth0: pid {os.getpid()} has the AF_XDP sockets of this interface" in line
            assert "end it, remove the options of xdp:eth0, or use packet:eth0" in line
        state = agent.ask()
        assert state["counts"]["failed"] == 0 and state["granted"] == 1
        client.open().close()  # a packet device
        opened.close()
    no_grants(agent)
    with Client(agent.socket) as client:
        client.open(device="xdp:eth0").close()


# -- devices that no agent opens


def test_dpdk_device_is_refused_with_remedy(host: Host, start_agent: StartAgent) -> None:
    agent = start_agent(host)
    refused = refusal(agent.socket, opening(device="dpdk:0000:01:00.0"))
    assert refused.number == errno.EINVAL
    assert "the agent opens no dpdk devices" in refused.text
    assert "set device = packet:IFACE or xdp:IFACE" in refused.text


def test_rank_with_dpdk_device_learns_that_the_agent_opens_none(
    host: Host, start_agent: StartAgent, start_pods: Pods
) -> None:
    agent = start_agent(host, "--allow", "nobody")
    environment = {"NCCL_DEBUG": "WARN"}
    (rank,) = start_pods(
        [agent], "all_reduce", scheme="dpdk", own_address=True, environment=environment, nranks=2
    )
    line = rank.wait_for_line("the agent of this node opens no dpdk devices", 30)[1]
    assert "NCCL WARN" in line and "set device = packet:IFACE or xdp:IFACE" in line


# -- starting an agent


def test_ports_that_the_kernel_gives_away_are_refused(host: Host, folder: Path) -> None:
    args = agent_args(folder, "--ports", "32000-33000")
    assert "ip_local_reserved_ports=32000-33000" in refused_start(host, args)


@pytest.mark.parametrize(
    "others", ["", "".join(f"{port}," for port in range(20001, 24001, 2))], ids=["alone", "last"]
)
def test_reserved_ports_are_accepted(lab: Lab, start_agent: StartAgent, others: str) -> None:
    """Also at the end of a list that needs more than 8 KiB."""
    host = lab.hosts[1]
    reserved = "/proc/sys/net/ipv4/ip_local_reserved_ports"
    host.write(reserved, f"{others}32000-33000")
    try:
        agent = start_agent(host, "--ports", "32000-33000")
        with Client(agent.socket) as client:
            opened = client.open()
            assert opened.first == 32000
            opened.close()
    finally:
        host.write(reserved, "\n")


def test_range_of_the_kernel_is_looked_at_for_each_grant(lab: Lab, start_agent: StartAgent) -> None:
    host = lab.hosts[1]
    agent = start_agent(host, "--ports", "61000-61127", "--block", "64")
    where = "/proc/sys/net/ipv4/ip_local_port_range"
    try:
        with Client(agent.socket) as client:
            host.write(where, "32768 61010")
            opened = client.open()
            assert opened.first == 61064, "the block has a port that the kernel gives away"
            opened.close()
            host.write(where, "32768 65535")
            refused = refusal(agent.socket, opening())
            assert refused.number == errno.EADDRINUSE
            assert "the kernel gives port 61000 to any program" in refused.text
            assert "sysctl net.ipv4.ip_local_reserved_ports=61000-61127" in refused.text
            assert refusal(agent.socket, opening(ports=[61100, 61101])).number == errno.EADDRINUSE
    finally:
        host.write(where, "32768 60999")


@pytest.mark.parametrize("ports", ["5", "80-90", "5000-4000", "60000-70000", "a-b"])
def test_wrong_port_range_is_refused(folder: Path, host: Host, ports: str) -> None:
    done = host.run(agent_args(folder, "--ports", ports), timeout=30, check=False)
    assert done.returncode == 2 and "--ports" in done.stderr


def test_second_agent_at_a_socket_is_refused(
    host: Host, folder: Path, start_agent: StartAgent
) -> None:
    agent = start_agent(host)
    assert "another agent serves it" in refused_start(host, agent_args(folder))
    assert agent.ask()["version"] == 1


def test_busy_agent_keeps_its_socket(host: Host, folder: Path, start_agent: StartAgent) -> None:
    """Its queue of connections is full, so that a probe cannot connect."""
    path = folder / "agent0.sock"
    waiting = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(path))
        silent.listen(0)
        for _ in range(2):
            waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            waiting[-1].setblocking(False)
            try:
                waiting[-1].connect(str(path))
            except BlockingIOError:
                break
        else:
            pytest.fail("the queue has room")
        assert "another agent serves it" in refused_start(host, agent_args(folder))
        assert path.is_socket()
    for one in waiting:
        one.close()
    start_agent(host)  # the socket of an agent that has ended is replaced


def test_agent_that_does_not_see_its_clients_says_so(host: Host, folder: Path) -> None:
    """It could not tell when they end."""
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with AgentProcess(folder, host, prefix=apart) as agent:
        refused = refusal(agent.socket, opening())
        assert refused.number == errno.EACCES and "hostPID: true" in refused.text


def test_agent_without_capabilities_is_refused(host: Host, folder: Path) -> None:
    args = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *agent_args(folder)]
    lacking = "lacks CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF; run it as root"
    assert lacking in refused_start(host, args, os.EX_CONFIG)
    args = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *agent_args(folder)]
    args = [
        *args[:4],
        "--inh-caps=+dac_read_search",
        "--ambient-caps=+dac_read_search",
        *args[4:],
    ]
    assert "run it as root" in refused_start(host, args, os.EX_CONFIG)


def test_folder_of_others_is_not_taken(host: Host, folder: Path) -> None:
    """Otherwise --socket /run/agent.sock would give /run to the agent's user."""
    args = agent_args(folder)
    args[args.index("root")] = "daemon"
    folder.chmod(0o755)
    said = refused_start(host, args)
    assert f"{folder}: belongs to uid 0, but the agent runs as daemon" in said
    assert folder.stat().st_uid == 0
