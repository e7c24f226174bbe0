# SPDX-License-Identifier: Apache-2.0
"""The measurement of hosts with several NICs, in a short form: bytes on every NIC, and no error
while one of them is down."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.hosts.lab import Lab
from tools.hosts.rails import Rails, add_rails
from tools.measure.nics import (
    CHANNELS,
    LOADS,
    MIB,
    NICS,
    STRIPE,
    Load,
    Nics,
    Outage,
    Plan,
    Run,
    outages_table,
    rates_table,
    remarks,
    run_load,
    run_outage,
    verdicts,
)

SHORT = Plan(pairs=1, outages=1, seconds=0.5, mbit=100)


@pytest.fixture(scope="module")
def rails() -> Iterator[Rails]:
    if os.geteuid() != 0:
        pytest.skip("a lab's hosts need root")
    with Lab(2, "veth-1500") as lab:
        made = add_rails(lab, NICS)
        made.shape(f"{SHORT.mbit}mbit")
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.op)
@pytest.mark.parametrize("nics", [1, NICS])
def test_load_uses_its_nics_alone(rails: Rails, load: Load, nics: int, tmp_path: Path) -> None:
    run = run_load(rails, load, nics, 0, SHORT, tmp_path)
    print(run)
    assert run.wrong == 0 and run.gbit > 0
    assert all(count > MIB for count in run.received[:nics])
    assert not any(run.received[nics:])


@pytest.mark.slow
@pytest.mark.parametrize("load,nic", [
    pytest.param(load, nic, id=f"{load.op}-{nic}") for load, nic in zip(LOADS, (0, 2))
])  # fmt: skip
def test_job_survives_loss_of_nic(rails: Rails, load: Load, nic: int, tmp_path: Path) -> None:
    """The other NICs carry the bytes meanwhile, and later the NIC carries bytes again."""
    outage = run_outage(rails, load, nic, SHORT, tmp_path)
    print(outage)
    assert outage.wrong == 0
    assert outage.before > 0 and outage.down > 0 and outage.up > 0
    assert outage.left < MIB / 8 < outage.back


def found(channels: float, stripe: float, down: float, up: float, wrong: int = 0) -> Nics:
    """Results with these rates over four NICs, in rates over one NIC, and these shares."""
    plan = Plan(1, 1, 1.0, 1000)
    made = Nics(plan)
    for load, gain in ((CHANNELS, channels), (STRIPE, stripe)):
        made.runs += [Run(load.name, 1, 0, 0.9, 0, []), Run(load.name, NICS, 0, 0.9 * gain, 0, [])]
    made.outages = [Outage(STRIPE.name, 0, 2.0, 2.0 * down, 2.0 * up, 0.5, wrong=wrong)]
    return made


def test_targets_are_judged() -> None:
    good = found(3.6, 3.4, 0.6, 0.9)
    assert [one.met for one in verdicts(good)] == [True] * 5
    assert "3.60 (3.60–3.60)" in rates_table(good)
    assert "0.60 (0.60–0.60)" in outages_table(good)
    assert not remarks(good)
    for number, bad in enumerate(
        (
            found(3.5, 3.5, 0.7, 1.0),
            found(3.7, 3.3, 0.7, 1.0),
            found(3.7, 3.5, 0.5, 1.0),
            found(3.7, 3.5, 0.7, 0.8),
            found(3.7, 3.5, 0.7, 1.0, wrong=1),
        )
    ):
        assert [not one.met for one in verdicts(bad)] == [i == number for i in range(5)]


def test_missing_results_are_no_success() -> None:
    nothing = Nics(Plan(1, 1, 1.0, 1000), failures=["a run failed"])
    assert not any(one.met for one in verdicts(nothing))
    assert rates_table(nothing)


def test_slow_machine_is_reported() -> None:
    slow = found(3.7, 3.5, 0.7, 1.0)
    slow.runs[0].gbit = 0.5
    assert "only 50% of its rate" in remarks(slow)[0]
