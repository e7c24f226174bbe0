# SPDX-License-Identifier: Apache-2.0
"""NCCL's traffic over the guest's NIC as an xdp device, on the driver of the guest's kernel. The
kernel keeps the NIC: its own TCP works meanwhile, and nothing is left when the process is gone."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dpdk_guest import configured, has_zero_copy, lonely_rank, needs_xdp, reduce_together
from guest import DATA, TEST_S, Guest

from tools.measure.kernel_talk import ECHO, PORT, TALK

pytestmark = [pytest.mark.timeout(TEST_S), needs_xdp]

DEVICE = ("--device", f"xdp:{DATA.name}")

# Starts the command, waits until its XDP program is attached, and kills it.
KILLED = f"""
"$@" & pid=$!
for i in $(seq 600); do ip link show {DATA.name} | grep -q xdp && break; sleep 0.2; done
ip link show {DATA.name}
kill -9 $pid
wait $pid 2>/dev/null
"""
SSH_PORT, KEYS = 2222, "/tmp/ssh-keys"


@contextmanager
def kernels_talk(guest: Guest) -> Iterator[None]:
    """The kernels of the guest and of this machine talk by TCP over the NIC during the block."""
    echo = guest.start(sys.executable, "-c", ECHO, DATA.address, PORT)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    for _ in range(200):  # until the guest listens
        talk = guest.host.popen([sys.executable, "-c", TALK, DATA.address, PORT], **pipes)
        assert talk.stdout
        if talk.stdout.readline() == "talking\n":
            break
        time.sleep(0.2)
    yield
    said, _ = talk.communicate("end\n", timeout=60)
    assert said, "the connection broke"
    assert json.loads(said)[0] > 1, "no line came back"
    assert guest.wait(echo).code == 0


def _make_key(folder: Path) -> tuple[Path, str]:
    """A new key, and its line for authorized_keys."""
    key = folder / "key"
    args = ["dropbearkey", "-t", "ed25519", "-f", str(key)]
    shown = subprocess.run(args, capture_output=True, text=True, check=True).stdout
    return key, next(line for line in shown.splitlines() if line.startswith("ssh-"))


def _line_returns(client: "subprocess.Popen[str]") -> bool:
    assert client.stdin and client.stdout
    try:
        print("line", file=client.stdin, flush=True)
    except BrokenPipeError:
        return False
    return client.stdout.readline() == "line\n"


def _log_in(guest: Guest, key: Path) -> "subprocess.Popen[str]":
    """cat in the guest, by ssh over the NIC."""
    args = ["dbclient", "-y", "-y", "-i", str(key), "-p", str(SSH_PORT), f"root@{DATA.address}"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    for _ in range(200):  # until the guest listens
        client = guest.host.popen([*args, "cat"], **pipes, stderr=subprocess.DEVNULL)
        if _line_returns(client):
            return client
        client.kill()
        client.communicate()
        time.sleep(0.5)
    pytest.fail("no ssh session")


@contextmanager
def ssh_session(guest: Guest, folder: Path) -> Iterator[None]:
    """An ssh session with the guest over the NIC works during the block: the guest sends lines
    back."""
    key, public = _make_key(folder)
    guest.write("/root/.ssh/authorized_keys", public + "\n")
    guest.check("sh", "-c", "chmod go= /root /root/.ssh /root/.ssh/*")
    make = f"rm -f {KEYS} && dropbearkey -t ed25519 -f {KEYS}"
    serve = f"{make} && exec dropbear -F -E -s -r {KEYS} -p {SSH_PORT}"
    server = guest.start("sh", "-c", serve)
    client = _log_in(guest, key)
    lines, ends = [0], threading.Event()

    def talk() -> None:
        while not ends.wait(0.1) and _line_returns(client):
            lines[0] += 1

    thread = threading.Thread(target=talk, daemon=True)
    thread.start()
    try:
        yield
        ends.set()
        thread.join(60)
        assert _line_returns(client), "the ssh session broke"
        assert lines[0] > 1
    finally:
        ends.set()
        client.kill()
        thread.join(60)
        client.communicate()
        guest.run("pkill", "-x", "dropbear")
        guest.wait(server)


def program(guest: Guest) -> str:
    """How a program is attached to the NIC: "xdp", "xdpgeneric"; "" for none."""
    shown = guest.check("ip", "link", "show", DATA.name).split()
    return next((word for word in shown if word.startswith("xdp")), "")


def test_all_reduce_over_xdp_device(guest: Guest, tmp_path: Path) -> None:
    with configured(guest, *DEVICE), kernels_talk(guest), ssh_session(guest, tmp_path):
        sizes = ("-b", "8", "-e", "1M", "-f", "37", "-n", "2", "-w", "1")
        reduced = reduce_together(guest, tmp_path, sizes)
    assert len(reduced.records) > 3 and reduced.is_right
    assert f"xdp {DATA.name}, {DATA.address}/24 (the kernel's)" in reduced.said
    sockets = reduced.counters["xdp_sockets"]
    assert sockets >= 1
    assert reduced.counters["xdp_zero_copy"] == (sockets if has_zero_copy(guest) else 0)
    assert reduced.counters["xdp_invalid_descriptors"] == 0
    assert program(guest) == ""


def test_killed_rank_leaves_nic_to_kernel(guest: Guest) -> None:
    with configured(guest, *DEVICE):
        done = guest.run("sh", "-c", KILLED, "sh", *lonely_rank())
        assert " xdp " in done.out and "xdpgeneric" not in done.out, str(done)
        assert program(guest) == ""
        with kernels_talk(guest):
            time.sleep(0.5)
