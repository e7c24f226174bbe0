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

import pytest
from dpdk_guest import configured, reduce_together
from guest import DATA, TEST_S, Guest, build_dir

from tools.measure.kernel_talk import ECHO, PORT, TALK

pytestmark = [
    pytest.mark.timeout(TEST_S),
    pytest.mark.skipif(
        not (build_dir() / "dpdk_glue" / "xdp_program.o").exists(),
        reason="this build has no XDP (no clang)",
    ),
]

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


class SshSession:
    """An ssh session with the guest over the NIC. A thread sends lines, and cat in the guest sends
    them back."""

    def __init__(self, guest: Guest, folder: Path) -> None:
        key = folder / "key"
        shown = subprocess.run(
            ["dropbearkey", "-t", "ed25519", "-f", str(key)], capture_output=True, text=True
        )
        public = next(line for line in shown.stdout.splitlines() if line.startswith("ssh-"))
        guest.write("/root/.ssh/authorized_keys", public + "\n")
        guest.check("sh", "-c", "chmod go= /root /root/.ssh /root/.ssh/*")
        serve = (
            f"dropbearkey -t ed25519 -f {KEYS} && exec dropbear -F -E -s -r {KEYS} -p {SSH_PORT}"
        )
        self._server = guest.start("sh", "-c", serve)
        self._guest = guest
        args = ["dbclient", "-y", "-y", "-i", str(key), "-p", str(SSH_PORT), f"root@{DATA.address}"]
        for _ in range(200):  # until the guest listens
            self._client = guest.host.popen(
                [*args, "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, bufsize=1, text=True,
            )  # fmt: skip
            if self._line_returns():
                break
            self._client.kill()
            said = self._client.communicate()[1]
            time.sleep(0.5)
        else:
            pytest.fail(f"no ssh session: {said}")
        self.lines, self._ends = 0, threading.Event()
        self._thread = threading.Thread(target=self._talk)
        self._thread.start()

    def _line_returns(self) -> bool:
        assert self._client.stdin and self._client.stdout
        try:
            print("line", file=self._client.stdin, flush=True)
        except BrokenPipeError:
            return False
        return self._client.stdout.readline() == "line\n"

    def _talk(self) -> None:
        while not self._ends.wait(0.1) and self._line_returns():
            self.lines += 1

    def end(self) -> int:
        """Returns the number of lines that came back. The session must still work."""
        self._ends.set()
        self._thread.join(60)
        assert self._line_returns(), "the ssh session broke"
        self._client.kill()
        self._client.communicate()
        self._guest.run("pkill", "-x", "dropbear")
        self._guest.wait(self._server)
        return self.lines


def program(guest: Guest) -> str:
    """How a program is attached to the NIC: "xdp", "xdpgeneric"; "" for none."""
    shown = guest.check("ip", "link", "show", DATA.name).split()
    return next((word for word in shown if word.startswith("xdp")), "")


def test_all_reduce_over_xdp_device(guest: Guest, tmp_path: Path) -> None:
    with configured(guest, *DEVICE), kernels_talk(guest):
        session = SshSession(guest, tmp_path)
        sizes = ("-b", "8", "-e", "1M", "-f", "37", "-n", "2", "-w", "1")
        reduced = reduce_together(guest, tmp_path, sizes)
        assert session.end() > 1
    assert len(reduced.records) > 3 and reduced.is_right
    assert f"xdp {DATA.name}, {DATA.address}/24 (the kernel's)" in reduced.said
    assert reduced.counters["xdp_sockets"] >= 1
    assert reduced.counters["xdp_invalid_descriptors"] == 0
    assert program(guest) == ""


def test_killed_rank_leaves_nic_to_kernel(guest: Guest) -> None:
    with configured(guest, *DEVICE):
        args = [build_dir() / "harp/bench/harp-perf", "all_reduce", "--rank", "1", "--nranks", "2"]
        args += ["--rendezvous", f"{DATA.peer}:9", "--plugin"]
        args += [build_dir() / "plugin/libnccl-net.so"]
        done = guest.run("sh", "-c", KILLED, "sh", *args)
        assert " xdp " in done.out and "xdpgeneric" not in done.out, str(done)
        assert program(guest) == ""
        with kernels_talk(guest):
            time.sleep(0.5)
