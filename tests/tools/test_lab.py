# SPDX-License-Identifier: Apache-2.0
"""Labs: the hosts reach each other, the wires match their names, and nothing is left behind."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Callable, List

import pytest

from tests.tools.transfers import transfer
from tools.hosts import lab as labs
from tools.hosts.lab import LOCKS, Lab, LabError, Wire
from tools.hosts.ranks import wait_until

MakeLab = Callable[..., Lab]


def left_behind(lab_id: str) -> List[str]:
    found = [name for name in labs.namespaces() if lab_id in name]
    return found + [path.name for path in LOCKS.iterdir() if path.name == lab_id]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("hosts", "wire"),
    [(2, "veth-1500"), (2, "veth-1500-nooff"), (2, "veth-9000"), (4, "veth-1500")],
)
def test_every_host_reaches_every_other(make_lab: MakeLab, hosts: int, wire: str) -> None:
    lab = make_lab(hosts, wire)
    for sender in lab.hosts:
        for receiver in lab.hosts:
            if sender is not receiver:
                result = transfer(sender, receiver, 100_000)
                assert result.sent == result.received


def features(host: labs.Host) -> "dict[str, bool]":
    lines = host.run(["ethtool", "-k", host.interface]).stdout
    return {
        name: value == "on" for name, value in re.findall(r"^\s*([\w-]+): (on|off)", lines, re.M)
    }


def test_wire_has_properties_of_its_name(make_lab: MakeLab) -> None:
    for wire, mtu, on in (
        ("veth-1500", 1500, True),
        ("veth-9000", 9000, True),
        ("veth-1500-nooff", 1500, False),
    ):
        lab = make_lab(2, wire)
        for host in lab.hosts:
            assert host.read(f"/sys/class/net/{host.interface}/mtu").strip() == str(mtu)
            have = features(host)
            assert have["tcp-segmentation-offload"] is on
            assert have["generic-segmentation-offload"] is on
            assert have["tx-checksumming"] is on
            assert have["rx-checksumming"] is on


def test_more_than_two_hosts_use_a_bridge() -> None:
    assert Lab(hosts=4, wire="veth-1500").wire.name == "veth-1500-bridge"
    assert Lab(hosts=2, wire="veth-1500").wire.name == "veth-1500"


@pytest.mark.parametrize(
    "name", ["veth", "veth-12", "veth-1500-fast", "eth-1500", "veth-1500-bridge-nooff"]
)
def test_invalid_wire_name_is_refused(name: str) -> None:
    with pytest.raises(LabError, match="wire"):
        Wire.parse(name)


def test_missing_ip_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match="apt-get install iproute2"), Lab(hosts=2):
        pass


@pytest.mark.parametrize("command", ["up", "clean"])
def test_lab_without_root_says_so(command: str) -> None:
    script = (
        f"import os; from tools.hosts.lab_cli import main; os.setuid(65534); main(['{command}'])"
    )
    with owner() as living:  # it has a file that only root may lock
        assert living.stdout and living.stdout.readline()
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        living.terminate()
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: {LOCKS}/") and "a lab needs root" in done.stderr


def test_connections_use_cubic(make_lab: MakeLab) -> None:
    lab = make_lab()
    server = lab.hosts[0].popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent("""
        import socket
        listener = socket.create_server(("0.0.0.0", 5001))
        print("listening", flush=True)
        connection, _ = listener.accept()
        print(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0"))
        """),
        ],
        stdout=subprocess.PIPE,
    )
    assert server.stdout and server.stdout.readline()
    client = lab.hosts[1].run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(f"""
        import socket
        connection = socket.create_connection(("{lab.hosts[0].address}", 5001))
        print(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0"))
        """),
        ]
    )
    assert client.stdout == server.stdout.readline() == "b'cubic'\n"


def test_kernel_counters_are_read(make_lab: MakeLab) -> None:
    lab = make_lab()
    sender, receiver = lab.hosts
    before = sender.counter("TcpOutSegs")
    transfer(sender, receiver, 1_000_000)
    moved = sender.counter("TcpOutSegs") - before
    assert 1_000_000 / 1460 <= moved < 1_000_000 / 1460 + 50
    with pytest.raises(LabError, match="TcpNoSuch"):
        sender.counter("TcpNoSuch")


def test_idle_wire_carries_no_frames(make_lab: MakeLab) -> None:
    host = make_lab().hosts[0]
    time.sleep(1)
    statistics = f"/sys/class/net/{host.interface}/statistics"
    assert [host.read(f"{statistics}/{what}_packets") for what in ("rx", "tx")] == ["0\n", "0\n"]


def test_link_state_can_be_changed(make_lab: MakeLab) -> None:
    host, other = make_lab().hosts
    for up in (False, True):
        other.set_link(up)
        assert host.read(f"/sys/class/net/{host.interface}/carrier").strip() == str(int(up))


def test_threaded_option_sets_threaded_napi(make_lab: MakeLab) -> None:
    host = make_lab(threaded=True).hosts[0]
    assert host.read(f"/sys/class/net/{host.interface}/threaded").strip() == "1"


def test_failed_program_is_reported(make_lab: MakeLab) -> None:
    host = make_lab().hosts[1]
    with pytest.raises(LabError, match=r"(?s)host 1 .*sh -c .* ended with 3.*why"):
        host.run(["sh", "-c", "echo why >&2; exit 3"])
    start = time.monotonic()
    with pytest.raises(LabError, match=r"ran past 0\.3 s"):
        host.run(["sleep", "30"], timeout=0.3)
    assert time.monotonic() - start < 20


def test_lab_exit_kills_programs_that_ignore_sigterm() -> None:
    with Lab() as lab:
        stubborn = lab.hosts[0].popen(
            ["sh", "-c", "trap '' TERM; echo up; sleep 100 & wait; sleep 100"],
            stdout=subprocess.PIPE,
        )
        assert stubborn.stdout and stubborn.stdout.readline() == "up\n"
        # A process outside of its parent's process group.
        lab.hosts[1].run(["sh", "-c", "setsid sleep 100 >/dev/null 2>&1 &"])
        pids = [
            int(pid)
            for host in lab.hosts
            for pid in labs._ip("netns", "pids", host.namespace).split()
        ]
    assert len(pids) >= 3
    deadline = time.monotonic() + 60
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(alive(pid) for pid in pids)
    assert not left_behind(lab.id)


def alive(pid: int) -> bool:
    """Whether the process runs. Zombies do not count."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def owner(*, relay: bool = False) -> "subprocess.Popen[str]":
    """Starts a process that makes a lab, prints its id, and sleeps."""
    program = textwrap.dedent(f"""
        import time
        from tools.hosts.lab import Lab
        from tools.hosts.relay import RelaySpec
        with Lab(relay={"RelaySpec()" if relay else None}) as lab:
            lab.hosts[0].popen(["sleep", "100"])
            print(lab.id, flush=True)
            time.sleep(100)
        """)
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("relay", [False, True])
def test_signal_to_owner_removes_lab(number: signal.Signals, relay: bool) -> None:
    with owner(relay=relay) as process:
        assert process.stdout
        lab_id = process.stdout.readline().strip()
        assert len(left_behind(lab_id)) == (4 if relay else 3)
        process.send_signal(number)
        process.wait(60)
    assert not left_behind(lab_id)


def clean_dead_lab() -> tuple[str, int, str]:
    """Lets `tools/lab clean` remove the lab of a killed owner. Returns the lab's name, how much of
    it was left behind, and what the command said. A lab of another test may have removed it first:
    then it tries again."""
    tool = os.path.join(os.path.dirname(__file__), "../../tools/lab")
    for _ in range(5):
        with owner() as dead:
            assert dead.stdout
            dead_id = dead.stdout.readline().strip()
            dead.kill()
        left = len(left_behind(dead_id))
        said = subprocess.run([tool, "clean"], capture_output=True, text=True, check=True).stdout
        if dead_id in said or left_behind(dead_id):
            break
    return dead_id, left, said


def test_clean_removes_only_dead_labs() -> None:
    with owner() as living:
        assert living.stdout
        living_id = living.stdout.readline().strip()
        try:
            dead_id, left, said = clean_dead_lab()
            assert left == 3
            assert dead_id in said and living_id not in said
            assert not left_behind(dead_id)
            assert len(left_behind(living_id)) == 3
        finally:
            living.terminate()
    assert not left_behind(living_id)


def test_clean_removes_the_folder_of_a_killed_lab() -> None:
    tool = os.path.join(os.path.dirname(__file__), "../../tools/lab")
    command = [tool, "up", "--", "sh", "-c", "echo folder $HARP_RUN_DIR; sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        line = next(line for line in process.stdout if line.startswith("folder "))
        process.kill()
        process.wait(60)
        folder = Path(line.split()[1]).parents[1]
        assert folder.is_dir() and folder.name.startswith(labs.FOLDER_PREFIX)
        labs.clean()  # also ends the command, which has the pipe
    assert not folder.exists()


def test_await_links_waits_for_both_carriers(lab: Lab) -> None:
    near, far = lab.hosts
    lab.await_links()
    near.set_link(False)
    wait_until(lambda: not near.has_link() and not far.has_link(), 20, "a link is up without cable")
    near.set_link(True)
    lab.await_links()
    assert near.has_link() and far.has_link()
    assert transfer(far, near, 100_000).received


def test_setup_in_lab_does_not_change_machine(tmp_path: Path) -> None:
    """A namespace shares the machine's files, so each host has its own folders."""
    script = (
        "show() { cat $HARP_CONF_DIR/ztcp0.conf; };"
        "harp setup --yes && show && h1 sh -c 'test ! -e $HARP_CONF_DIR && ls -d $HARP_RUN_DIR' &&"
        "h1 harp setup --yes --set flows=2 && h1 sh -c 'cat $HARP_CONF_DIR/ztcp0.conf' &&"
        "h1 hostname -I && echo $HARP_CONF_DIR"
    )
    done = subprocess.run(
        [sys.executable, "-m", "tools.hosts.lab_cli", "up", "--", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HARP_CONF_DIR": str(tmp_path / "machine"), "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "host 1: 10.77.0.2, h1 COMMAND\n" in done.stdout
    assert done.stdout.count("device = packet:eth0\n") == 2
    assert done.stdout.count("\nflows = 2\n") == 1 and "10.77.0.2 \n" in done.stdout
    folder = done.stdout.splitlines()[-1]
    assert folder.startswith(f"{tmp_path}/harp-lab-") and folder.endswith("/host0/config")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_reaches_command() -> None:
    """A terminal sends SIGINT to all processes in its foreground."""
    script = "echo $LAB_HOSTS; exec sleep 100"
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.hosts.lab_cli", "up", "--", "sh", "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout
        hosts = next(line for line in process.stdout if line.startswith(labs.PREFIX)).split()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(20) == 128 + signal.SIGINT
    finally:
        process.terminate()
        process.communicate(timeout=20)
    assert len(hosts) == 2 and not set(hosts) & set(labs.namespaces())
