# SPDX-License-Identifier: Apache-2.0
"""tools/flood: unauthenticated peers flood a rank. The floods are short. The tests check bytes,
memory and counters, but not the cost, because the machine may be busy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.measure.flood import USUAL
from tools.measure.flood_rows import (
    MEMORY_MOST,
    RATIO_LEAST,
    Attack,
    Phase,
    Plan,
    Row,
    table,
)
from tools.measure.flood_scene import attacks
from tools.measure.runner import has_xdp

COMMAND = [sys.executable, "-m", "tools.measure.flood"]
SHORT = ("--connections", "500", "--rate", "4000")
# One attack of each kind: own connections, spoofed segments of the peer, and below TCP.
SOME = ("tiny", "out-of-order", "data", "sacks", "fragments", "arp")


def flood(*args: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMAND, *args], capture_output=True, text=True, timeout=200)


def rows(path: Path, *args: str) -> dict[str, dict[str, Any]]:
    """The rows of a short flood, by attack. Only the rate may miss its target."""
    if os.geteuid() != 0:
        pytest.skip("a lab's hosts need root")
    done = flood(*SHORT, "--json", str(path), *args)
    assert done.returncode in (0, 1) and path.exists(), done.stderr
    document = json.loads(path.read_text())
    assert document["schema"] == "harp.flood/1"
    found = {row["attack"]["name"]: row for row in document["rows"]}
    for row in found.values():
        assert all(fault.startswith("the rate fell") for fault in row["faults"]), done.stderr
        assert row["wrong"] == 0
        assert row["grown"] <= MEMORY_MOST
        assert row["report"]["frames"] > 0
        assert f"| {row['attack']['name']}: " in done.stdout
    return found


@pytest.mark.slow
def test_usual_attacks_end_without_fault(tmp_path: Path) -> None:
    found = rows(tmp_path / "rows.json", "--transport", "packet")
    assert list(found) == list(USUAL)
    # On a busy machine, the number of answers is random.
    reports = [found[name]["report"] for name in ("tokens", "replay")]
    answered = sum(report["answered"] for report in reports)
    assert answered > sum(report["connections"] for report in reports) / 20, "no handshakes"
    assert sum(row["unauthenticated"] for row in found.values()) > answered / 4, (
        "too few unauthenticated peers"
    )
    assert all(row["report"]["connections"] > 0 for row in found.values())


@pytest.mark.slow
def test_other_attacks_end_without_fault(tmp_path: Path) -> None:
    """The rank has its own address, so that HARP also answers ARP. HARP_TEST_FULL=1 runs all."""
    others = [name for name in attacks() if name not in USUAL]
    if not os.environ.get("HARP_TEST_FULL"):
        others = [name for name in others if name in SOME]
    assert len(others) >= len(SOME)
    args = [word for name in others for word in ("--attack", name)]
    found = rows(tmp_path / "rows.json", "--transport", "packet-own", *args)
    assert list(found) == others


@pytest.mark.slow
@pytest.mark.skipif(not has_xdp(), reason="this build has no XDP (no clang)")
def test_attacks_over_xdp_end_without_fault(tmp_path: Path) -> None:
    """The program gives floods of TCP to HARP and those below TCP to the kernel."""
    names = ["tokens", "data", "fragments", "arp"]
    args = [word for name in names for word in ("--attack", name)]
    found = rows(tmp_path / "rows.json", "--transport", "xdp", *args)
    assert list(found) == names
    report = found["tokens"]["report"]
    assert report["answered"] > report["connections"] / 20, "no handshakes"


@pytest.mark.slow
def test_attacks_over_wire_end_without_fault(tmp_path: Path) -> None:
    names = ["tokens", "sitters", "data"]
    args = [word for name in names for word in ("--attack", name)]
    found = rows(tmp_path / "rows.json", "--transport", "wire", *args)
    assert list(found) == names
    report = found["tokens"]["report"]
    assert report["answered"] > report["connections"] / 20, "no handshakes"


@pytest.mark.slow
def test_injected_wrong_byte_is_detected() -> None:
    if os.geteuid() != 0:
        pytest.skip("a lab's hosts need root")
    done = flood(*SHORT, "--transport", "packet", "--attack", "half-open", "--inject-wrong")
    assert done.returncode == 1
    assert "FAIL half-open, packet: wrong elements: " in done.stderr


@pytest.mark.parametrize(
    "args,says",
    [
        (("--attack", "hugs"), "--attack hugs: the attacks are tokens, half-open,"),
        (("--rate", "1"), "Invalid value for '--rate'"),
        (("--transport", "nobody"), "Invalid value for '--transport'"),
    ],
)
def test_wrong_usage_exits_2(args: tuple[str, ...], says: str) -> None:
    done = flood(*args)
    assert done.returncode == 2 and says in done.stderr


def test_list_option_names_every_attack() -> None:
    done = flood("--list")
    assert done.returncode == 0
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == list(attacks())


# -- the checks, on made-up rows


def judged(
    victim: float = 1.0, nobody: float = 1.0, grown: int = 0, wrong: "int | None" = 0
) -> Row:
    row = Row(Attack("tokens", "connections", 2), "packet", grown=grown, wrong=wrong)
    row.victim = [Phase(victim, 1.0)] * 3
    row.nobody = [Phase(nobody, 1.0)] * 3
    row.report = {"frames": 100, "seconds": 2.0, "connections": 25, "answered": 25}
    return row


def test_good_row_has_no_fault() -> None:
    assert judged().faults() == []
    assert judged(RATIO_LEAST, 1.0, MEMORY_MOST).faults() == []
    row = judged(0.5)
    # Half the bytes for the same CPU time, at 50 frames a second.
    assert row.cost_us == pytest.approx(0.5 / 50 * 1e6)
    assert re.search(r"\| +0\.50 \| +3 \| +10000\.0 \|", table([row]))


@pytest.mark.parametrize(
    "row,says",
    [
        (judged(0.8), "the rate fell to 0.80"),
        (judged(grown=MEMORY_MOST + 1), "memory grew"),
        (judged(wrong=1), "wrong elements: 1"),
        (judged(wrong=None), "not verified"),
    ],
)
def test_bad_row_names_its_fault(row: Row, says: str) -> None:
    (fault,) = row.faults()
    assert says in fault
    assert row.as_json()["faults"] == [fault]


def test_plan_reaches_number_of_connections() -> None:
    plan = Plan(100_000, 10_000)
    assert plan.flood_s(Attack("a", "", 2)) == pytest.approx(40)
    assert plan.flood_s(Attack("a", "", 1)) == pytest.approx(20)
    many = Attack("a", "", 81)
    assert many.connections(100_000) == 2469
    assert plan.flood_s(many) == pytest.approx(40)
    assert Plan(1, 10_000).flood_s(Attack("a", "", 1)) == pytest.approx(1)
