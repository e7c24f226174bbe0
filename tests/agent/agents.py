# SPDX-License-Identifier: Apache-2.0
"""Agents on the hosts of a lab, and pods: processes of nobody with no capability, in namespaces of
their own that have only a loopback interface."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Optional

import pytest

from harp import paths
from harp.agent import query
from tools.hosts.lab import Host
from tools.hosts.ranks import Perf, Program, Site

NOBODY = "65534"
POD = (
    *("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--no-new-privs"),
    *("--pdeathsig", "KILL"),  # a change of the user clears that of --kill-child
    *("--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all"),
)


NEWER = str(Path(__file__).with_name("newer_agent.py"))


class AgentProcess(Program):
    """`harp agent` on a host. It serves `socket`. newer: of a later release. home: the socket's
    folder. prefix: precedes its command line."""

    def __init__(
        self,
        folder: Path,
        host: Host,
        *options: str,
        newer: bool = False,
        home: Optional[Path] = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.host = host
        self.socket = (home or folder) / f"agent{host.index}.sock"
        program = [NEWER] if newer else ["-m", "harp"]
        args = [sys.executable, *program, "agent", "--socket", str(self.socket)]
        super().__init__(Site(folder, host.command(prefix)), [*args, "--user", "root", *options])
        self.wait_for_line("harp agent: serves", 30)

    def ask(self, what: str = "status") -> Any:
        """The answer to a query."""
        return query.ask(self.socket, what, timeout_s=20)

    def stop(self) -> None:
        self.signal(signal.SIGTERM)
        assert self.wait(20) == 0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that nobody may enter and write to, unlike pytest's own."""
    made = Path(tempfile.mkdtemp(prefix="harp-agent-", dir="/dev/shm"))
    made.chmod(0o777)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def start_agent(folder: Path) -> Iterator[Callable[..., AgentProcess]]:
    """Starts an agent on a host, with more options of its command line."""
    with ExitStack() as stack:

        def start(host: Host, *options: str, newer: bool = False) -> AgentProcess:
            options = ("--device", host.interface, *options)
            agent = AgentProcess(folder, host, *options, newer=newer)
            stack.enter_context(agent)
            return agent

        yield start


Pods = Callable[..., list[Perf]]


@pytest.fixture
def start_pods(folder: Path) -> Iterator[Pods]:
    """Starts one rank of harp-perf in a pod for each agent. They meet at a UNIX socket, because
    they have no common network. nranks: of the job, if it has more. first: the first one's number.
    prefix: precedes the rank's command line."""
    program, plugin = folder / "harp-perf", folder / "libnccl-net.so"
    shutil.copy(paths.perf_program(), program)
    shutil.copy(paths.nccl_plugin_path(), plugin)
    with ExitStack() as stack:

        def start(
            agents: list[AgentProcess],
            *args: str,
            own_address: bool = False,
            scheme: str = "packet",
            environment: Optional[dict[str, str]] = None,
            nranks: Optional[int] = None,
            first: int = 0,
            prefix: Sequence[str] = (),
            **keys: object,
        ) -> list[Perf]:
            ranks = []
            rendezvous = f"unix:{folder}/ranks"
            for number, agent in enumerate(agents, first):
                host = agent.host
                address = f"{host.own_address}/{host.prefix}" if own_address else "kernel"
                site = Site(
                    folder / str(number), [*POD, *prefix], {"HARP_AGENT": str(agent.socket)}
                )
                site.environment.update(environment or {})
                for path in (site.folder, site.run_folder):
                    path.chmod(0o777)
                lines = {"device": f"{scheme}:{host.interface}", "address": address, **keys}
                site.configure("".join(f"{key} = {value}\n" for key, value in lines.items()))
                args_here = [*args, "--plugin", str(plugin)]
                rank = Perf(site, args_here, number, rendezvous, nranks or len(agents), program)
                ranks.append(stack.enter_context(rank))
            return ranks

        yield start


def descriptors(process: "subprocess.Popen[str]") -> int:
    """The number of open descriptors of a process."""
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


def children_named(name: str) -> list[int]:
    """The processes with this name below this process."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
        except OSError:
            continue
        command, fields = stat.rpartition(")")[0].partition("(")[2], stat.rpartition(")")[2].split()
        if command == name[:15] and fields[0] != "Z" and int(fields[1]) == os.getpid():
            found.append(int(folder.name))
    return found


def payload(rank: Perf) -> int:
    """The bytes that a rank has sent."""
    return sum(nic.totals["tcp_payload_out"] for nic in rank.site.published())
