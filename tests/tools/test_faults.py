# SPDX-License-Identifier: Apache-2.0
"""Every fault once, with jobs that end as expected. tools/faults also detects wrong ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tools.hosts.lab import Lab, namespaces
from tools.hosts.rails import Rails, add_rails
from tools.hosts.ranks import wait_until
from tools.measure import fault_table, fault_trials
from tools.measure.fault_series import Series, run_series
from tools.measure.fault_table import FAULTS
from tools.measure.fault_trials import (
    CRASH,
    ERROR,
    HANG,
    OTHER,
    WENT_ON,
    WRONG,
    Fault,
    Outcome,
    Setting,
    Trial,
    run_trial,
)
from tools.measure.runner import has_xdp

SEED = 7
TIMEOUT_MS = 3000  # long enough for a busy machine
BY_NAME = {fault.name: fault for fault in FAULTS}
NEEDS_XDP = pytest.mark.skipif(not has_xdp(), reason="this build has no XDP (no clang)")
STEP, ITERATION = "64K", 64  # messages of this size that a rank receives in an all_reduce of 4 MiB
SERIES_S = int(os.environ.get("HARP_TEST_SERIES_S") or 3)

Run = Callable[..., Outcome]


@pytest.fixture
def trial(lab: Lab, tmp_path: Path) -> Run:
    def run(fault: Fault, transport: str = "packet", inject_wrong: bool = False) -> Outcome:
        setting = Setting(transport, lab, SEED, TIMEOUT_MS, inject_wrong)
        outcome = run_trial(fault, 0, setting, tmp_path)
        print(outcome)
        return outcome

    return run


def ends_as_it_has_to(outcome: Outcome) -> None:
    ends = BY_NAME[outcome.fault].ends
    assert (outcome.kind, outcome.text) == (ends, "")
    assert outcome.expected
    assert (outcome.error_s is not None) == (ends == ERROR)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BY_NAME if "packet" in BY_NAME[name].transports])
def test_every_fault_ends_as_expected(trial: Run, name: str) -> None:
    ends_as_it_has_to(trial(BY_NAME[name]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "transport,name",
    [
        ("packet-own", "replaced"),
        ("wire", "stop-long"),
        pytest.param("xdp", "blackhole-one", marks=NEEDS_XDP),
        pytest.param("xdp", "replaced", marks=NEEDS_XDP),
    ],
)
def test_faults_over_other_transports_end_as_expected(
    trial: Run, transport: str, name: str
) -> None:
    ends_as_it_has_to(trial(BY_NAME[name], transport))


@pytest.fixture(scope="module")
def rails() -> Iterator[Rails]:
    if os.geteuid() != 0:
        pytest.skip("a lab's hosts need root")
    with Lab(2, "veth-1500") as lab:
        yield add_rails(lab, 2)


ON_RAILS = {fault.name: fault for fault in fault_table.RAIL_FAULTS}
SOME_ON_RAILS = ["kill", "nic-long", "nics-long", "blackhole-nic", "replaced"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_RAILS if os.environ.get("HARP_TEST_FULL") else SOME_ON_RAILS)
def test_faults_of_hosts_with_two_nics_end_as_expected(
    rails: Rails, name: str, tmp_path: Path
) -> None:
    setting = Setting("packet", rails.lab, SEED, TIMEOUT_MS, rails=rails)
    outcome = run_trial(ON_RAILS[name], 0, setting, tmp_path)
    print(outcome)
    assert (outcome.kind, outcome.text) == (ON_RAILS[name].ends, "")
    assert outcome.expected


OVER_ETHDEV = [name for name in BY_NAME if "ethdev" in BY_NAME[name].transports]
if not os.environ.get("HARP_TEST_FULL"):
    OVER_ETHDEV = ["kill", "stop-short", "blackhole-one", "device-closed"]


@pytest.mark.slow
@pytest.mark.parametrize("name", OVER_ETHDEV)
def test_faults_over_ethdev_end_as_expected(trial: Run, name: str) -> None:
    ends_as_it_has_to(trial(BY_NAME[name], "ethdev"))


# -- wrong ends must be detected


def no_fault(trial: Trial) -> None:
    """Injects no fault."""


def no_error(trial: Trial) -> None:
    trial.fails(0, time.monotonic())


def segfault(trial: Trial) -> None:
    trial.ranks[0].signal(signal.SIGSEGV)


def stopped_for_good(trial: Trial) -> None:
    trial.ranks[0].signal(signal.SIGSTOP)
    trial.ranks[1].signal(signal.SIGSTOP)


def killed_later(trial: Trial) -> None:
    """The error comes long after its given cause."""
    trial.killed.append(trial.ranks[1])
    trial.ranks[1].signal(signal.SIGKILL)
    trial.fails(0, time.monotonic() - 5)


WRONGS = {
    "a job that has to end goes on": (Fault("x", "", ERROR, no_error), HANG),
    "a job that has to go on hangs": (Fault("x", "", WENT_ON, stopped_for_good), HANG),
    "a job that has to go on ends": (Fault("x", "", WENT_ON, fault_table.kill), OTHER),
    "a crash": (Fault("x", "", WENT_ON, segfault), CRASH),
    "a late error": (Fault("x", "", ERROR, killed_later), OTHER),
    "a flow that is not replaced": (Fault("x", "", WENT_ON, no_fault, replaces=1), OTHER),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONGS)
def test_unexpected_outcome_is_detected(
    trial: Run, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault, kind = WRONGS[case]
    monkeypatch.setattr(fault_trials, "HANG_S", 1.0)
    for module in (fault_trials, fault_table):
        monkeypatch.setattr(module, "END_S", 8.0)
    outcome = trial(fault)
    assert (outcome.kind, outcome.expected) == (kind, False)
    assert outcome.text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config-removed", "kill"])
def test_injected_wrong_byte_is_detected(trial: Run, name: str) -> None:
    """A wrong byte is detected with any end of the job that comes after it."""
    fault = BY_NAME[name]

    def strike(trial: Trial) -> None:
        trial.job.await_messages(2 * ITERATION)
        fault.strike(trial)

    later = replace(fault, args=("--step", STEP), strike=strike)
    outcome = trial(later, inject_wrong=True)
    assert (outcome.kind, outcome.expected) == (WRONG, False)


def lasted(*seconds: float) -> Fault:
    """A fault with these lengths in successive tries."""
    left = list(seconds)
    return Fault("x", "", WENT_ON, lambda trial: trial.was_short(time.monotonic() - left.pop(0)))


@pytest.mark.slow
def test_missed_trial_is_repeated(trial: Run) -> None:
    outcome = trial(lasted(5, 0))
    assert (outcome.kind, outcome.text, outcome.missed) == (WENT_ON, "", 1)


@pytest.mark.slow
def test_trial_missed_every_time_fails(trial: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_trials, "TRIES", 2)
    outcome = trial(lasted(5, 5))
    assert (outcome.kind, outcome.expected, outcome.missed) == (OTHER, False, 1)
    assert "this machine is too busy" in outcome.text


@pytest.mark.slow
def test_missed_trial_still_reports_wrong_byte(trial: Run) -> None:
    outcome = trial(replace(lasted(5), args=("--step", "64K")), inject_wrong=True)
    assert (outcome.kind, outcome.missed) == (WRONG, 0)


# -- a blackhole each second


@pytest.mark.slow
def test_series_replaces_every_dead_flow(lab: Lab, tmp_path: Path) -> None:
    seen = run_series(Setting("packet", lab, SEED, TIMEOUT_MS), SERIES_S, tmp_path)
    print(seen)
    assert seen.failure is None
    assert (seen.blackholes, seen.replaced, seen.wrong) == (SERIES_S, SERIES_S, 0)
    assert len(seen.times) == SERIES_S


@pytest.mark.parametrize(
    "series",
    [
        Series(blackholes=3, replaced=2, wrong=0),
        Series(blackholes=3, replaced=4, wrong=0),
        Series(blackholes=3, replaced=3, wrong=1),
        Series(blackholes=3, replaced=3, wrong=None),
        Series(blackholes=0, replaced=0, wrong=0),
    ],
)
def test_failed_series_is_detected(series: Series) -> None:
    assert series.judge().failure
    assert Series(blackholes=3, replaced=3, wrong=0).judge().failure is None


# -- the command

COMMAND = [sys.executable, "-m", "tools.measure.faults"]


def command(*args: object) -> subprocess.CompletedProcess[str]:
    if os.geteuid() != 0:
        pytest.skip("a lab's hosts need root")
    return subprocess.run([*COMMAND, *map(str, args)], capture_output=True, text=True, timeout=100)


@pytest.mark.slow
def test_table_reports_trials(tmp_path: Path) -> None:
    done = command("--times", 2, "--only", "kill,folder-full-killed", "--json", tmp_path / "j",
                   "--seed", 3, "--logs", tmp_path / "logs")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 of 4 trials ended as expected" in done.stdout
    assert "| kill: a rank is killed " in done.stdout
    document = json.loads((tmp_path / "j").read_text())
    assert (document["schema"], document["seed"]) == ("harp.faults/1", 3)
    assert [one["kind"] for one in document["trials"]] == [ERROR] * 4
    assert not (tmp_path / "logs").exists()


def test_unexpected_trial_ends_run_and_keeps_logs(tmp_path: Path) -> None:
    """The logs of the trial are kept, with its traces."""
    logs = tmp_path / "logs"
    done = command("--times", 20, "--only", "kill", "--inject-wrong", "--logs", logs)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "kill 0: wrong: " in done.stdout
    assert " of 20 trials ended as expected" in done.stdout
    assert len(list(logs.iterdir())) < 20
    kept = next(logs.iterdir())
    assert "elements" in (kept / "0.log").read_text() + (kept / "1.log").read_text()
    assert list(kept.glob("*/run/*.trace"))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_nothing(number: int, tmp_path: Path) -> None:
    """An interrupted run leaves no files, processes or namespaces."""
    if os.geteuid() != 0:
        pytest.skip("a lab's hosts need root")
    before = set(namespaces())
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    args = [*COMMAND, "--only", "folder-full", "--at-once", "2"]
    process = subprocess.Popen(
        args, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        wait_until(lambda: list(tmp_path.glob("harp-faults-*/0/run/*.stat")), 30, "no trial runs")
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    print(said)
    assert process.returncode not in (0, 2)
    assert list(tmp_path.iterdir()) == []
    left = [name for name in set(namespaces()) - before if str(process.pid) in name]
    assert left == []
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


@pytest.mark.parametrize(
    "args,said",
    [
        (["--only", "flood"], "unknown fault 'flood'; the faults are kill, "),
        (["--only", "link-long", "--nics", "2"], "unknown fault 'link-long'"),
        (["--nics", "2", "--transport", "wire"], "--nics is for trials over packet"),
        (["--only", "link-long", "--transport", "wire"], "link-long: not possible over wire"),
        (["--times", "0"], "--times"),
    ],
)
def test_wrong_usage_exits_2(args: list[str], said: str) -> None:
    done = command(*args)
    assert done.returncode == 2
    assert said in done.stderr
