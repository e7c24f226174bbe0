# SPDX-License-Identifier: Apache-2.0
"""Many stacks in virtual time: random scenarios break no rule, and the scenarios meet their
bounds."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import golden
import pytest
from simulator import KINDS, SCENARIOS, Result, SimError, Total, program, run, run_seeds

CI_SEEDS = 60
# The sanitizers make everything several times slower, so they check rules but not rates.
SANITIZED = "SANITIZER_RUNTIME" in os.environ
RATES = pytest.mark.skipif(SANITIZED, reason="rates are looked at with the plain build")


def payload_rate(line_mbps: int, mtu: int = 1500) -> float:
    """The Mbit/s of payload that a line can carry, without headers, timestamps and Ethernet's
    gaps."""
    return line_mbps * (mtu - 52) / (mtu + 38)


@pytest.fixture(scope="module")
def seen() -> Callable[[str], list[Result]]:
    """Returns the runs of a scenario's golden row, made once."""
    made: dict[str, list[Result]] = {}

    def results(name: str) -> list[Result]:
        if name not in made:
            made[name] = golden.results(name)
        return made[name]

    return results


@pytest.mark.slow
@pytest.mark.sanitized
def test_random_seeds_break_no_rule() -> None:
    total = Total()
    for result in run_seeds(1, CI_SEEDS):
        total.add(result)
    assert [(result.seed, result.violation) for result in total.broken] == []
    assert total.runs == CI_SEEDS
    assert total.connections > 3000
    assert total.unseen() == []


def test_the_same_seed_gives_the_same_run() -> None:
    assert list(run_seeds(7, 2)) == list(run_seeds(7, 2))


@pytest.mark.quick_cases(8)
@RATES
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "ring of 64" else ())
        for name in SCENARIOS
    ],
)
def test_scenarios_match_golden_results(name: str, seen: Callable[[str], list[Result]]) -> None:
    """For an intended change: run tools/sim --golden --write, and give the reason in the commit."""
    runs = seen(name)
    assert [result.violation for result in runs if result.violation] == []
    found = golden.changes(name, golden.read()[name], golden.row_of(runs))
    assert not found, "\n".join(map(str, found))


# The bounds of the scenarios


@RATES
def test_one_flow_fills_a_long_fast_line(seen: Callable[[str], list[Result]]) -> None:
    """At 100 Gbit/s and 100 µs, a flow reaches at least 0.95 of the line rate."""
    for result in seen("one flow"):
        assert result.goodput_mbps >= 0.95 * payload_rate(100_000)


@RATES
def test_one_flow_fills_outstanding_limit(seen: Callable[[str], list[Result]]) -> None:
    """1 MiB in an RTT of 100 µs is less than the line rate."""
    for result in seen("one flow, 1 MiB outstanding"):
        assert result.goodput_mbps >= 0.95 * (1 << 20) * 8 / 100


@RATES
def test_incast_fills_line_and_starves_no_flow(seen: Callable[[str], list[Result]]) -> None:
    line = payload_rate(25_000)
    for result in seen("incast 8 to 1"):
        assert result.goodput_mbps >= 0.9 * line
        assert min(result.flow_mbps) >= 0.5 * line / 8


@pytest.mark.slow
@RATES
def test_ring_steps_over_narrow_core_stay_even(seen: Callable[[str], list[Result]]) -> None:
    for result in seen("ring of 64"):
        assert result.steps["count"] == 64 * 15
        assert result.steps["p99_ns"] <= 2 * result.steps["median_ns"]


@RATES
@pytest.mark.parametrize("name", ["two flows", "a late second flow"])
def test_two_flows_get_equal_rates(name: str, seen: Callable[[str], list[Result]]) -> None:
    """The rates differ by at most 20 %, summed over the seeds."""
    sums = [sum(flow) for flow in zip(*(result.flow_mbps for result in seen(name)))]
    assert min(sums) >= 0.8 * max(sums)


# The simulator itself


def test_every_fault_kind_is_reported() -> None:
    assert set(KINDS) == set(run("bytes=1000").faults)


def test_violation_is_reported() -> None:
    """A line loses all frames: the connection fails, which is a violation."""
    result = run("bytes=1000,drop=1")
    assert result.violation and "error -110" in result.violation


@pytest.mark.parametrize(
    "scenario, said",
    [
        ("drop=2", "drop=2: allowed is 0 to 1"),
        ("mtu=100", "mtu=100: allowed is 576 to 65535"),
        ("speed=1", "unknown key 'speed'"),
        ("drop", "write key=value"),
        ("hosts=3", "pairs need an even number"),
    ],
)
def test_invalid_arguments_are_refused(scenario: str, said: str) -> None:
    with pytest.raises(SimError, match=said):
        run(scenario)


def test_capture_is_readable_by_tshark(tmp_path: Path) -> None:
    capture = tmp_path / "run.pcapng"
    result = run("bytes=20000", capture)
    expert = subprocess.run(
        ["tshark", "-r", str(capture), "-Y", "tcp", "-T", "fields", "-e", "tcp.checksum.status",
         "-o", "tcp.check_checksum:TRUE"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    lines = expert.stdout.split()
    assert len(lines) >= 2 * result.frames - 4
    assert "0" not in lines  # bad


def test_help_lists_keys() -> None:
    told = subprocess.run([str(program()), "--help"], capture_output=True, text=True, check=True)
    assert "rate_mbps" in told.stdout
    assert subprocess.run([str(program())], capture_output=True).returncode == 2
