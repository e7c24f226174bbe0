# SPDX-License-Identifier: Apache-2.0
"""The agent as a service: the socket that systemd passes, what systemd is told, and the files that
`harp agent file` prints."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from agents import AgentProcess
from raw_client import Client

from harp.agent import privileges, service
from harp.cli.agent import agent as command
from harp.cli.printed_files import OF_AGENT
from tools.hosts.lab import Host, Lab

# Stands for systemd: listens, tells the test, waits for its line, and becomes the agent.
SYSTEMD = """
import os, socket, sys
kind, path, pid = sys.argv[1:4]
listener = socket.socket(socket.AF_UNIX, getattr(socket, kind))
listener.bind(path)
os.chmod(path, 0o666)
listener.listen(8)
if listener.fileno() != 3:
    os.dup2(listener.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=pid or str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="agent")
os.execvp(sys.argv[4], sys.argv[4:])
"""


@pytest.fixture
def host(lab: Lab) -> Host:
    return lab.hosts[0]


def systemd(kind: str, folder: Path, pid: str = "") -> list[str]:
    return [sys.executable, "-c", SYSTEMD, kind, str(folder / "agent0.sock"), pid]


@pytest.fixture
def manager(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket at which systemd would hear of the service's state."""
    path = folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(path))
        heard.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        yield heard


def test_socket_of_systemd_is_served(host: Host, folder: Path, manager: socket.socket) -> None:
    """The agent takes it, says READY=1, and leaves it to systemd at its end."""
    with AgentProcess(folder, host, prefix=systemd("SOCK_SEQPACKET", folder)) as agent:
        assert manager.recv(100) == b"READY=1"
        with Client(agent.socket) as client:
            client.open().close()
        agent.stop()
        assert manager.recv(100) == b"STOPPING=1"
        assert agent.socket.exists(), "the socket is systemd's"


def test_socket_for_another_process_is_left_alone(
    host: Host, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parent's variables may be inherited."""
    monkeypatch.setenv("LISTEN_PID", "1")
    monkeypatch.setenv("LISTEN_FDS", "1")
    with AgentProcess(folder, host) as agent:
        assert agent.ask()["version"] == 1
        agent.stop()
    assert not agent.socket.exists()


def test_socket_of_wrong_type_is_refused(host: Host, folder: Path) -> None:
    args = [sys.executable, "-m", "harp", "agent", "--user", "root"]
    args += ["--socket", str(folder / "agent0.sock")]
    done = host.run([*systemd("SOCK_STREAM", folder), *args], timeout=30, check=False)
    assert done.returncode == 1 and "ListenSequentialPacket= in place of" in done.stderr


@pytest.mark.parametrize("count", ["0", "2", ""])
def test_other_number_of_sockets_is_refused(monkeypatch: pytest.MonkeyPatch, count: str) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", count)
    with pytest.raises(service.ActivationError, match="needs one ListenSequentialPacket="):
        service.passed_socket()
    assert "LISTEN_PID" not in os.environ


def test_state_is_told_to_an_abstract_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"harp-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(f"\0{name}")
        heard.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        service.notify("READY=1")
        assert heard.recv(100) == b"READY=1"
    service.notify("READY=1")  # nobody listens
    monkeypatch.delenv("NOTIFY_SOCKET")
    service.notify("READY=1")


# -- the files


def settings(name: str) -> dict[str, str]:
    """The settings of a unit file."""
    return dict(re.findall(r"^(\w+)=(.*)$", OF_AGENT.text(name), re.MULTILINE))


def parses(args: list[str]) -> dict[str, Any]:
    """The options of `harp agent` in a command line."""
    with command.make_context("agent", args) as context:
        return context.params


@pytest.fixture
def units(tmp_path: Path) -> list[str]:
    names = [name for name in OF_AGENT.names if name.startswith("harp-agent.")]
    for name in names:
        (tmp_path / name).write_text(OF_AGENT.text(name))
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is missing")
    return [str(tmp_path / name) for name in names]


def test_units_are_correct(units: list[str]) -> None:
    # A build has no man pages yet.
    args = ["systemd-analyze", "verify", "--man=no", *units]
    done = subprocess.run(args, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "harp" not in done.stderr, done.stderr


def test_service_is_sandboxed(units: list[str]) -> None:
    """systemd rates its exposure from 0 to 10; 9.6 is that of a service without any setting."""
    args = ["systemd-analyze", "security", "--offline=true", "--threshold=30", "--no-pager"]
    done = subprocess.run([*args, units[0]], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout[-2000:]


def test_service_has_the_agents_capabilities() -> None:
    service_file = settings("harp-agent.service")
    wanted = {f"CAP_{name.upper()}" for name in privileges.CAPABILITIES}
    for name in ("CapabilityBoundingSet", "AmbientCapabilities"):
        assert set(service_file[name].split()) == wanted
    assert service_file["SystemCallErrorNumber"] == "EPERM", "harp-agent-open calls iopl"
    assert service_file["Type"] == "notify" and service_file["LimitMEMLOCK"] == "infinity"
    default = {one.name: one.default for one in command.params}
    assert service_file["User"] == default["user"]
    assert f"/run/{service_file['RuntimeDirectory']}/agent.sock" == str(default["socket_path"])
    path = settings("harp-agent.socket")["ListenSequentialPacket"]
    assert path == str(default["socket_path"])
    program, module, name, verb, options = service_file["ExecStart"].split()
    assert [program, module, name, verb] == [sys.executable, "-m", "harp", "agent"]
    assert options == "$AGENT_OPTIONS"
    line = re.search(r'AGENT_OPTIONS=(.*?)"', OF_AGENT.text("harp-agent.service"))
    assert line and parses(line[1].split())["allow"] == ("@jobs",)


@pytest.mark.parametrize("name", ["bpf", "setpcap"])
def test_missing_capability_ends_the_agent_for_good(host: Host, folder: Path, name: str) -> None:
    """It ends with one line, and with a status after which systemd starts it no more."""
    args = ["setpriv", f"--bounding-set=-{name}", "--inh-caps=-all", sys.executable, "-m", "harp"]
    args += ["agent", "--user", "root", "--socket", str(folder / "agent0.sock")]
    done = host.run(args, timeout=30, check=False)
    (line,) = done.stderr.splitlines()
    assert f"the agent lacks CAP_{name.upper()}; run it as root or by its systemd unit" in line
    assert "harp agent file daemonset.yaml" in line
    assert str(done.returncode) == settings("harp-agent.service")["RestartPreventExitStatus"]


def test_attempts_to_start_have_a_limit() -> None:
    """The time is long enough for all of them, also where Python starts slowly."""
    unit = settings("harp-agent.service")
    attempts, seconds = int(unit["StartLimitBurst"]), int(unit["StartLimitIntervalSec"])
    assert attempts * (int(unit["RestartSec"]) + 10) <= seconds


def test_pods_status_has_the_agents_last_line() -> None:
    yaml = pytest.importorskip("yaml")
    pod = yaml.safe_load(OF_AGENT.text("daemonset.yaml"))["spec"]["template"]["spec"]
    assert pod["containers"][0]["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_daemonset_runs_the_agent() -> None:
    yaml = pytest.importorskip("yaml")
    pod = yaml.safe_load(OF_AGENT.text("daemonset.yaml"))["spec"]["template"]["spec"]
    (container,), (chown,) = pod["containers"], pod["initContainers"]
    assert pod["hostNetwork"] and pod["hostPID"]
    assert container["command"] == ["harp", "agent"]
    options = parses(container["args"])
    assert chown["command"][1] == f"{options['user']}:{options['user']}"
    given = {name.lower() for name in container["securityContext"]["capabilities"]["add"]}
    needed = {*privileges.CAPABILITIES, privileges.MEMORY_LOCK}
    assert given == needed | {"setuid", "setgid", "setpcap"}
    (volume,), (mount,) = pod["volumes"], container["volumeMounts"]
    folder = str(options["socket_path"].parent)
    assert volume["hostPath"]["path"] == mount["mountPath"] == folder


def test_pod_needs_no_privilege() -> None:
    yaml = pytest.importorskip("yaml")
    pod = yaml.safe_load(OF_AGENT.text("pod.yaml"))["spec"]
    daemonset = yaml.safe_load(OF_AGENT.text("daemonset.yaml"))
    allowed = parses(daemonset["spec"]["template"]["spec"]["containers"][0]["args"])["allow"]
    assert str(pod["securityContext"]["runAsUser"]) in allowed
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "hostNetwork" not in pod and "hostPID" not in pod
    assert (
        pod["volumes"][0]["hostPath"]["path"]
        == pod["containers"][0]["volumeMounts"][0]["mountPath"]
    )


def test_capabilities_of_the_daemonset_suffice(host: Host, folder: Path) -> None:
    """Started with exactly these, the agent becomes its user and opens a device."""
    yaml = pytest.importorskip("yaml")
    pod = yaml.safe_load(OF_AGENT.text("daemonset.yaml"))["spec"]["template"]["spec"]
    names = pod["containers"][0]["securityContext"]["capabilities"]["add"]
    user = parses(pod["containers"][0]["args"])["user"]
    check = ["setpriv", "--reuid", user, "--clear-groups", sys.executable, "-m", "harp", "--help"]
    if subprocess.run(check, capture_output=True, check=False).returncode:
        pytest.skip(f"uid {user} may not read this checkout")
    home = folder / "run"
    home.mkdir()
    os.chown(home, int(user), int(user))
    kept = ",".join(["-all", *(f"+{name.lower()}" for name in names)])
    prefix = ["setpriv", f"--bounding-set={kept}", "--inh-caps=-all", "--no-new-privs"]
    with AgentProcess(folder, host, "--user", user, home=home, prefix=prefix) as agent:
        with Client(agent.socket) as client:
            for device in ("packet:eth0", "xdp:eth0"):
                client.open(device=device).close()
        agent.stop()


def test_unknown_file_is_refused() -> None:
    with pytest.raises(click.UsageError), command.make_context("agent", []):
        OF_AGENT.command("").make_context("file", ["../accounts.py"])
