# SPDX-License-Identifier: Apache-2.0
"""tools/recovery: transfers through the relay are correct and counted, and medians are compared."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools.hosts.conversations import Conversation, Told
from tools.hosts.lab import Lab
from tools.hosts.relay import RelaySpec
from tools.measure import fairness, recovery
from tools.measure.fairness import Row, share
from tools.measure.meter import Meter
from tools.measure.recovery import HARP, LINUX, PAIRS, Cell, Point, Recovery, Trial, judge, points
from tools.measure.stats import increase

KB = 1000


def trial(pair: str, goodput: float, needless: int = 0) -> Trial:
    return Trial(pair, 0, 100 * KB, goodput, 1.0, 10, needless, 10, {})


def cell(point: Point, needless: int = 0, stalled: str = "", **goodputs: float) -> Cell:
    """A cell where two kernels have a median of 10, with HARP's and the mixed pairs. stalled: two
    more runs of this pair failed."""
    made = Cell(point)
    made.trials[LINUX] = [trial(LINUX, rate, 5) for rate in (1.0, 10.0, 11.0)]
    made.trials[HARP] = [trial(HARP, goodputs.get("harp", 10.0), needless)] * 3
    for pair in ("harp->linux", "linux->harp"):
        made.trials[pair] = [trial(pair, goodputs.get("mixed", 9.0))] * 3
    if stalled:
        made.failures[stalled] = ["it did not end"] * 2
    return made


LOSSY, CLEAN, REORDER = Point(2.0, "random", 0.01), Point(2.0), Point(0.2, "reorder", 0.01)


@pytest.mark.parametrize(
    ("judged", "missed"),
    [
        (cell(LOSSY), 0),
        (cell(LOSSY, harp=9.94), 1),
        (cell(CLEAN, harp=9.8), 0),
        (cell(CLEAN, harp=9.7), 1),
        (cell(LOSSY, mixed=8.9), 2),
        (cell(REORDER, needless=5), 0),
        (cell(REORDER, needless=6), 1),
        (cell(LOSSY, needless=6), 0),
        (Cell(REORDER), 4),
        (cell(LOSSY, stalled=HARP), 0),
        (cell(LOSSY, harp=1.0, stalled=LINUX), 0),
        (cell(LOSSY, harp=1.0), 1),
    ],
)
def test_verdict_follows_targets(judged: Cell, missed: int) -> None:
    assert [one.met for one in judge(judged)].count(False) == missed


def test_points_are_complete() -> None:
    names = [point.name for point in points()]
    assert len(names) == len(set(names)) == 20
    assert {"0.2ms/clean", "2ms/burst/0.01%", "2ms/random/3%", "0.2ms/reorder/1%"} <= set(names)
    burst = Point(2.0, "burst", 0.03).spec(100, 256, 7)
    assert (burst.delay_us, burst.rate_mbps, burst.queue, burst.seed) == (1000, 100, 256, 7)
    lost = burst.drop * burst.drop_burst  # on average, for each frame that starts no burst
    assert lost / (lost + 1 - burst.drop) == pytest.approx(0.03)


def test_interpolation_between_samples() -> None:
    timeline = [(1.0, 0.0), (2.0, 10.0), (4.0, 50.0)]
    assert increase(timeline, 1.5, 3.0) == 25.0
    assert increase(timeline, 0.0, 9.0) == 50.0
    assert increase(timeline, 4.0, 5.0) == 0.0
    with pytest.raises(ValueError):
        increase([], 0, 1)


def test_load_meter_measures_busy_time() -> None:
    meter, all_is_own = Meter(load=0.0), Meter(load=1.0)
    begin = time.monotonic()
    while time.monotonic() < begin + 0.3:
        pass
    middle = time.monotonic()
    meter.stop()
    all_is_own.stop()
    assert all_is_own.busy(begin, middle) < 0.1
    assert meter.busy(begin, middle) > 0.05  # less than 0.3 on a busy machine
    assert meter.busy(begin - 2, begin - 1) == 0.0


def receiving(*timeline: tuple[float, int]) -> Conversation:
    told = Told(0, "", 0, "", 0.0)
    return Conversation(told, replace(told, timeline=timeline))


def test_fairness_counts_common_time() -> None:
    first = receiving((10.0, 0), (11.0, 100), (12.0, 700), (20.0, 900))
    second = receiving((11.0, 0), (12.0, 200))
    got, rate = share(first, second)
    assert got == pytest.approx(2 * 600 / 800)
    assert rate == pytest.approx(800 / 1e6)
    with pytest.raises(AssertionError, match="ran together"):
        share(first, receiving((19.95, 0), (21.0, 100)))


@pytest.mark.parametrize(
    ("mix", "shares", "met"),
    [
        ("two of HARP", [0.9, 1.1, 0.4], True),
        ("two of HARP", [0.8, 1.2, 1.0], False),
        ("HARP beside Linux", [0.71, 0.2, 1.4], True),
        ("HARP beside Linux", [1.6, 1.0, 1.7], False),
        ("HARP beside Linux", [0.6, 0.5, 1.7], False),
        ("HARP beside Linux", [], False),
    ],
)
def test_fairness_verdict_follows_targets(mix: str, shares: list[float], met: bool) -> None:
    verdict = fairness.judge(Row(2.0, mix, shares))
    assert verdict and verdict.met == met


@pytest.fixture(scope="module")
def relayed() -> Lab:
    with Lab(2, recovery.WIRE, RelaySpec()) as lab:
        yield lab


@pytest.mark.slow
def test_recovery_measures_one_point(tmp_path: Path) -> None:
    """The command with little data measures all pairs, losses and costs."""
    path = tmp_path / "recovery.json"
    args = ["--only", "0.2ms/random/3%", "--runs", "1", "--seconds", "0.05", "--rate", "40"]
    done = CliRunner().invoke(recovery.main, [*args, "--json", str(path)])
    assert done.exit_code == 0, done.output
    document = json.loads(path.read_text())
    (point,) = document["points"]
    assert set(point["trials"]) == set(PAIRS) and not point["failures"]
    for pair, (one,) in point["trials"].items():
        assert one["bytes"] >= 300 * KB and one["goodput"] > 0
        assert one["dropped"] > 0 and one["retransmitted"] > 0
        assert bool(one["counters"]) == (pair != LINUX)
    assert point["trials"][HARP][0]["counters"]["tcp_retransmits"] > 0
    assert len(document["targets"]) == 3


def test_fairness_measures_two_flows(
    relayed: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fairness, "MIXES", {"HARP beside Linux": (True, False)})
    monkeypatch.setattr(fairness, "RTTS_MS", (0.2,))
    monkeypatch.setattr(fairness, "LEAST_S", 0.01)
    (row,) = fairness.measure(relayed, tmp_path, RelaySpec(rate_mbps=10), 1, 1.0, lambda text: None)
    assert not row.failures
    assert 0.05 < row.shares[0] < 1.95
    assert row.rates[0] < 2 * 10 / 8


def test_rate_is_half_of_slower_transfer(
    relayed: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "CALIBRATION_BYTES", 300 * KB)
    monkeypatch.setattr(recovery, "RTTS_MS", (0.2,))
    monkeypatch.setattr(recovery, "RATE_LEAST", 0)
    measuring = Recovery(relayed, tmp_path, 0.05, lambda text: None)
    measuring.hold()
    assert set(measuring.reaches) == {f"0.2ms {LINUX}", f"0.2ms {HARP}"}
    least = min(measuring.reaches.values())
    assert least / 2 - 10 <= measuring.rate_mbps <= least / 2 or measuring.rate_mbps == 1000


@pytest.mark.slow
def test_stalled_run_fails_in_time(
    relayed: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run fails in time with a text, and the hosts are free for the next run."""
    monkeypatch.setattr(recovery, "PAIRS", {name: PAIRS[name] for name in (LINUX, HARP)})
    measuring = Recovery(relayed, tmp_path, 0.05, lambda text: None, timeout_s=1.0)
    measuring.rate_mbps = 40
    began = time.monotonic()
    dead = measuring.measure(Point(0.2, "random", 1.0), 1)
    assert time.monotonic() - began < 60
    assert sorted(dead.failures) == [HARP, LINUX] and not dead.trials
    assert all(host.processes == [] for host in relayed.hosts)


def test_only_option_selects_points() -> None:
    chosen = [point.name for point in recovery._chosen(["2ms/reorder", "burst/3%"])]
    assert chosen == ["0.2ms/burst/3%", "2ms/burst/3%", "2ms/reorder/1%"]


def test_unknown_point_exits_2() -> None:
    done = CliRunner().invoke(recovery.main, ["--only", "5ms"])
    assert done.exit_code == 2
    assert "2ms/burst/3%" in done.output
