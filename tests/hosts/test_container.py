# SPDX-License-Identifier: Apache-2.0
"""A job between two unprivileged containers. Each has its own mount, pid and network namespaces, a
user other than root, only CAP_NET_RAW, the configuration read-only in its default folder, and no
run folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from ranks import START_S, Perf, Site, packet_site, wait_until

from harp import paths
from harp.observe import statfile
from tools.hosts.lab import Host, Lab

USER = 4711  # a user id without an account
NET_RAW = 1 << 13  # as a capability mask
TOOLS = "/usr/local/tfabric/tools"

# Acts as a container runtime: mounts a new /dev/shm and a new /usr/local with the image's files and
# the host's configuration. Then runs the program of the image, given after the script's arguments.
RUNTIME = f"""
folder=$1 plugin=$2 capabilities=$3 program=$4
shift 4
mount -t tmpfs -o size=64m,mode=1777 none /dev/shm
mount -t tmpfs none /usr/local
mkdir -p /usr/local/harp {TOOLS}/config
cp "$plugin" "$program" /usr/local/harp
mount --bind "$folder" {TOOLS}/config
mount -o remount,bind,ro {TOOLS}/config
mount -o remount,ro /usr/local
exec setpriv --reuid={USER} --regid={USER} --clear-groups --no-new-privs \\
  --bounding-set=-all,"$capabilities" --inh-caps=-all,"$capabilities" \\
  --ambient-caps=-all,"$capabilities" \\
  "/usr/local/harp/${{program##*/}}" "$@" --plugin "/usr/local/harp/${{plugin##*/}}"
"""
UNSHARED = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def container(folder: Path, host: Host, own_address: bool, capabilities: str = "+net_raw") -> Site:
    site = packet_site(folder, host, own_address)
    folder.chmod(0o755)
    plugin = str(paths.nccl_plugin_path())
    script = ("sh", "-ec", RUNTIME, "container", str(folder), plugin, capabilities)
    site.prefix = [*site.prefix, *UNSHARED, *script]
    site.environment.update(HARP_CONF_DIR="", HARP_RUN_DIR="", NCCL_DEBUG="INFO")
    return site


def inside(rank: Perf) -> Path:
    """The /proc folder of the program in a rank's container."""
    pid = rank.process.pid
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return Path("/proc") / child


def is_unprivileged(process: Path) -> None:
    """Checks that the process is as unprivileged as the module's docstring says."""
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    assert set(status["Uid"].split()) == {str(USER)}
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")} == {NET_RAW}
    assert status["NSpid"].split()[1:] == ["1"]
    mounts = (process / "mounts").read_text()
    assert re.search(rf" {TOOLS}/config \S+ ro,", mounts), mounts
    for kind in ("mnt", "pid", "net"):
        assert (process / "ns" / kind).readlink() != Path(f"/proc/self/ns/{kind}").readlink()


def flows(rank: Perf) -> None:
    """Waits until it has received messages, by its statistics in /dev/shm."""
    folder = inside(rank) / f"root/dev/shm/harp-{USER}"

    def messages() -> int:
        return sum(process.totals["messages_in"] for process in statfile.scan([folder]))

    wait_until(messages, START_S, f"no messages, as {folder} tells", [rank])


@contextmanager
def job(sites: list[Site], rendezvous: str) -> Iterator[list[Perf]]:
    args = ["all_reduce", "-b", "1M", "-e", "1M", "-n", "80", "--rate", "0.5"]
    with ExitStack() as stack:
        yield [
            stack.enter_context(Perf(site, args, number, rendezvous))
            for number, site in enumerate(sites)
        ]


@pytest.mark.slow
@pytest.mark.parametrize("own_address", [False, True], ids=["kernel address", "own address"])
def test_job_runs_in_unprivileged_containers(lab: Lab, tmp_path: Path, own_address: bool) -> None:
    sites = [container(tmp_path / str(host.index), host, own_address) for host in lab.hosts]
    with job(sites, f"{lab.hosts[0].address}:29418") as ranks:
        for rank in ranks:
            rank.wait_for_line("NCCL INFO HARP", START_S)
            is_unprivileged(inside(rank))
            flows(rank)
        resets = [host.counter("TcpOutRsts") for host in lab.hosts]
        assert [rank.wait(60) for rank in ranks] == [0, 0], [rank.lines() for rank in ranks]
    assert ranks[0].wrong() == [0]
    assert [host.counter("TcpOutRsts") for host in lab.hosts] == resets
    for rank in ranks:
        (said,) = rank.lines("NCCL INFO HARP")
        assert re.search(
            r", receive buffer \d+ KiB \(CAP_NET_ADMIN: 64 MiB\); \d instances?,", said
        )
        assert f"; {TOOLS}/config/ztcp0.conf; all hosts" in said
        (warning,) = rank.warnings
        assert f"run directory {TOOLS}/run: No such file or directory" in warning
        assert f"statistics go to /dev/shm/harp-{USER} instead" in warning


def test_missing_cap_net_raw_declines(lab: Lab, tmp_path: Path) -> None:
    """Init fails, so NCCL would use sockets. One line names the missing capability."""
    site = container(tmp_path / "0", lab.hosts[0], False, capabilities="-net_raw")
    with Perf(site, ["all_reduce"], 0, "127.0.0.1:9") as rank:
        assert rank.wait(START_S) == 1, rank.lines()
        assert rank.lines("declines: init")
        (line,) = rank.lines("] NCCL ")
    assert "packet:eth0: not allowed to open a packet socket; give the process CAP_NET_RAW" in line
    assert "--cap-add NET_RAW" in line and "; NCCL goes on without HARP" in line
