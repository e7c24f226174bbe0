# SPDX-License-Identifier: Apache-2.0
"""Very many hosts on one link layer, in virtual time, and a flood at one of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from harp.paths import build_dir
from tools.measure.instructions import inclusive

FULL = bool(os.environ.get("HARP_TEST_FULL"))
HOSTS, UNKNOWN, FLOOD_S = (1000, 50, 10) if FULL else (300, 50, 5)
RUN_S = 1500 if FULL else 120
SYNS = 2000 * 3  # of a flood of three seconds
SANITIZED = "SANITIZER_RUNTIME" in os.environ

pytestmark = pytest.mark.timeout(RUN_S + 60)


def program() -> str:
    return str(build_dir() / "tests/scale/many-hosts")


@pytest.fixture(scope="module")
def seen() -> dict[str, int]:
    args = [program(), str(HOSTS), str(UNKNOWN), str(FLOOD_S)]
    done = subprocess.run(args, capture_output=True, text=True, timeout=RUN_S, check=False)
    print(done.stdout)
    assert done.stdout, done.stderr
    return {name: int(number) for name, number in map(str.split, done.stdout.splitlines())}


@pytest.mark.slow
@pytest.mark.sanitized
def test_every_host_pair_exchanges_messages(seen: dict[str, int]) -> None:
    """Twice, the second time when all links are open. Each host is asked for once by each other
    one, and nothing is lost."""
    assert seen["talks"] == HOSTS * (HOSTS - 1)
    assert seen["arp_requests_out"] == HOSTS * (HOSTS - 1)
    for name in ("failed", "neighbours_replaced", "arp_failures", "arp_queue_drops",
                 "tcp_retransmits"):  # fmt: skip
        assert seen[name] == 0, name
    assert max(seen["first_longest_us"], seen["again_longest_us"]) < 1000


def test_new_links_complete_within_1_s_during_flood(seen: dict[str, int]) -> None:
    """2,000 spoofed SYNs a second, as many ARP questions, and as many claims to addresses of
    others: every new link, from the victim or to it, has carried its messages within a second."""
    assert seen["flood_talks"] == seen["flood_links"] == FLOOD_S * 100
    assert seen["flood_failed"] == seen["flood_listen_drops"] == 0
    assert seen["flood_longest_us"] < 1_000_000
    assert seen["flood_half_open_dropped"] + seen["flood_cookies_out"] > FLOOD_S * 1000


def cost(folder: Path, function: str, ports: int) -> int:
    """Instructions of a function and all below it in a flood of an instance's size, for a SYN."""
    out = folder / f"callgrind.{ports}"
    args = [
        *("valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}"),
        *("--collect-atstart=no", f"--toggle-collect={function}"),
        *(program(), "4", "0", "3", "4096", str(ports)),
    ]
    subprocess.run(args, capture_output=True, timeout=RUN_S, check=True)
    args = ["callgrind_annotate", "--inclusive=yes", "--threshold=100", str(out)]
    told = subprocess.run(args, capture_output=True, text=True, timeout=60, check=True).stdout
    return inclusive(told)[function] // SYNS


@pytest.mark.slow
@pytest.mark.sanitized
@pytest.mark.skipif(SANITIZED, reason="the sanitizer's instructions count, too")
@pytest.mark.skipif(not shutil.which("valgrind"), reason="there is no valgrind")
def test_syn_cost_does_not_depend_on_listener_count(tmp_path: Path) -> None:
    """The stack has 4096 connections, half of them handshakes, and twenty listeners or four
    thousand. It searches none of them. Most of a SYN's cost is the ARP request for its answer."""
    few, many = (cost(tmp_path, "tcp_input", ports) for ports in (20, 4000))
    print(f"a SYN takes {few} instructions, at 4000 listeners {many}")
    assert 500 < few < 4000
    assert many < 1.2 * few
