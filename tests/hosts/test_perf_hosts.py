# SPDX-License-Identifier: Apache-2.0
"""`harp perf --hosts`: the ranks on two hosts, started from one, over a wrapper that stands for
ssh."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.hosts.lab import Lab
from tools.hosts.ranks import packet_site, wait_until
from tools.hosts.remote_shell import write_remote_shell


class Starter:
    """Starts `harp perf --hosts`; the hosts' names are their addresses."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        sites = {
            host.address: packet_site(folder / f"host{host.index}", host) for host in lab.hosts
        }
        self.ssh = write_remote_shell(folder / "ssh", sites)

    def start(self, *args: object, hosts: Sequence[str] = ()) -> "subprocess.Popen[str]":
        named = ",".join(hosts or [host.address for host in self.lab.hosts])
        harp = f"{sys.executable} -m harp"
        command = [sys.executable, "-m", "harp", "perf", *args, "--hosts", named]
        command += ["--ssh", self.ssh, "--remote-harp", harp, "--timeout", 20]
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NCCL_SOCKET_IFNAME": "eth0"},
        )

    def run(self, *args: object, hosts: Sequence[str] = ()) -> tuple[int, str, str]:
        process = self.start(*args, hosts=hosts)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
        assert "Traceback" not in err, err
        return process.returncode, out, err

    def ranks(self) -> list[str]:
        """The pids in the hosts."""
        return [
            pid
            for host in self.lab.hosts
            for pid in subprocess.run(
                ["ip", "netns", "pids", host.namespace],
                capture_output=True, text=True, timeout=20, check=True,
            ).stdout.split()
        ]  # fmt: skip


@pytest.fixture
def starter(lab: Lab, tmp_path: Path) -> Starter:
    return Starter(lab, tmp_path)


def test_hosts_measure_together(starter: Starter, tmp_path: Path) -> None:
    """Rank 0's table and its records come to the starting host."""
    file = tmp_path / "records.json"
    args = ["sendrecv", "--sizes", "64K:5", "--verified", "--kernel", "--json", file]
    code, _, err = starter.run(*args)
    assert code == 0, err
    assert "rank 0 on 10.77.0.1, rank 1 on 10.77.0.2" in err and "# sendrecv, 2 ranks" in err
    (record,) = json.loads(file.read_text())["records"]
    assert (record["wrong"], record["nranks"], record["transport"]) == (0, 2, "kernel-tcp")
    assert not starter.ranks()


@pytest.mark.slow
@pytest.mark.sanitized
def test_page_shows_harp_beside_kernel(starter: Starter, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    args = ["sendrecv", "-b", "4K", "-e", "64K", "-f", "16", "-n", "5", "--html", page]
    code, _, err = starter.run(*args)
    assert code == 0, err
    text = page.read_text()
    assert text.count("<polyline") == 4  # two lines in each of two charts
    assert "HARP</text>" in text and "kernel TCP</text>" in text
    rows = [row.split("</td>") for row in text.split("<tr><td>")[1:]]
    assert [row[0] for row in rows] == ["4K", "64K"]
    for row in rows:
        assert float(row[3][4:]) == pytest.approx(float(row[2][4:]) / float(row[1][4:]), rel=0.01)
        assert row[6] == "<td>0"


@pytest.mark.slow
@pytest.mark.sanitized
def test_unreachable_host_ends_other_ranks(starter: Starter) -> None:
    code, _, err = starter.run("sendrecv", "--kernel", hosts=["10.77.0.1", "10.77.0.9"])
    assert code == 1
    assert "10.77.0.9: ssh: connect to host 10.77.0.9 port 22: No route to host" in err
    assert "10.77.0.9: rank 1 was not started: see ssh's message" in err
    assert "harp perf: the other ranks are ended" in err  # the other rank alone waits 20 s
    assert not starter.ranks()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_runs_after_an_interrupt(starter: Starter, number: int) -> None:
    """Also if the starter is killed: its ranks' inputs end with it."""
    process = starter.start("sendrecv", "--kernel", "-b", "1M", "-e", "1M", "-n", 10**7)
    try:
        wait_until(lambda: len(starter.ranks()) >= 4, 20, "both ranks must run")
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == (1 if number == signal.SIGINT else -number)
    assert ("interrupted" in err) == (number == signal.SIGINT)
    wait_until(lambda: not starter.ranks(), 15, "a rank is left")
