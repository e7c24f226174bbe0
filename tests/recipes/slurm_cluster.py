# SPDX-License-Identifier: Apache-2.0
"""Slurm on the hosts of the recipes: slurmctld on gpu1, slurmd on both, and munged. All of their
files are in the cluster's folder."""

from __future__ import annotations

import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cluster import Cluster

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")
START_S = 30.0

_CONFIGURATION = """\
ClusterName=recipes
SlurmctldHost=gpu1({controller})
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SchedulerParameters=sched_min_interval=0,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
PartitionName=all Nodes=gpu1,gpu2 Default=YES State=UP
"""


def missing() -> list[str]:
    """The programs that this machine lacks."""
    return [name for name in PROGRAMS if not shutil.which(name, path="/usr/sbin:/usr/bin")]


def _configure(cluster: Cluster, folder: Path, more: str) -> None:
    for name in ("state", "gpu1", "gpu2", "munge"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge/key"
    key.write_bytes(secrets.token_bytes(128))
    for path, mode in ((folder / "munge", 0o700), (key, 0o400)):
        path.chmod(mode)
    text = _CONFIGURATION.format(controller=cluster.hosts["gpu1"].address, folder=folder)
    for name, host in cluster.hosts.items():
        text += f"NodeName={name} NodeAddr={host.address} CPUs=4\n"
    (folder / "slurm.conf").write_text(text + more)
    (folder / "plugstack.conf").write_text("")
    # ip netns exec mounts a new /sys, without cgroups.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")


def _logs(folder: Path) -> str:
    return "\n".join(path.read_text()[-2000:] for path in sorted(folder.rglob("*.log")))


class Slurm:
    """`variables` are those of a user's shell."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.variables = {"SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, args: Sequence[str], host: str = "gpu1") -> str:
        """Runs a program on a host. An error has the ends of Slurm's logs."""
        try:
            return self.cluster.run([host], args, self.variables)
        except AssertionError as failure:
            raise AssertionError(f"{failure}\n{_logs(self.folder)}") from None


@contextmanager
def slurm(cluster: Cluster, more: str = "") -> Iterator[Slurm]:
    """Starts Slurm, and waits until both nodes are idle. more: lines for slurm.conf."""
    folder = cluster.folder / "slurm"
    _configure(cluster, folder, more)
    made = Slurm(cluster, folder)
    munge = folder / "munge"
    daemons = {
        "munged": ["munged", "--foreground", "--force", f"--key-file={munge}/key",
                   f"--socket={folder}/munge.sock", f"--log-file={munge}/munged.log",
                   f"--pid-file={munge}/pid", f"--seed-file={munge}/seed"],
        "slurmctld": ["slurmctld", "-D", "-i"],
        "gpu1": ["slurmd", "-D", "-N", "gpu1"],
        "gpu2": ["slurmd", "-D", "-N", "gpu2"],
    }  # fmt: skip
    with ExitStack() as stack:
        for name, args in daemons.items():
            host = name if name in cluster.hosts else "gpu1"
            daemon = cluster.start(host, args, made.variables, output=subprocess.DEVNULL)
            stack.callback(_end, daemon)
            if name == "munged":
                _await(folder / "munge.sock", daemon)
        wait = 'until [ "$(sinfo -h -o %t-%D)" = idle-2 ]; do sleep 0.1; done'
        made.run(["timeout", str(START_S), "sh", "-c", wait])
        yield made


def _await(path: Path, daemon: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + START_S
    while not path.exists():
        assert daemon.poll() is None and time.monotonic() < limit, f"{daemon.args!r} made no {path}"
        time.sleep(0.01)


def _end(daemon: subprocess.Popen[str]) -> None:
    daemon.send_signal(signal.SIGTERM)
    try:
        daemon.wait(10)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait(10)
