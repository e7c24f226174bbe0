# SPDX-License-Identifier: Apache-2.0
"""tools/jobs: its tables and verdicts, and each job once in a short form."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner, Result

from tools.hosts.lab import Lab, LabError
from tools.hosts.mpi_job import MPIRUN, mpirun
from tools.hosts.ranks import Site
from tools.hosts.remote_shell import write_remote_shell
from tools.measure.fault_trials import ERROR, HANG, OTHER, WENT_ON, Misbehaved
from tools.measure.jobs import (
    all_reduce,
    compression,
    ddp,
    faults,
    fsdp,
    recommender,
    shared_memory,
    synthetic,
)
from tools.measure.jobs import hosts as lab_hosts
from tools.measure.jobs.command import main

pytestmark = pytest.mark.timeout(300)  # loading PyTorch in each rank takes long on a busy machine


def invoke(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def cells(table: str) -> list[str]:
    """Those of the last row."""
    return [cell.strip() for cell in table.splitlines()[-1].split("|")[1:-1]]


def test_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_hosts.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(click.ClickException, match="no scikit-learn here: .venv/bin/pip install"):
        lab_hosts.require("sklearn")


def test_all_reduce_divides_gloos_time_by_harps() -> None:
    records = [{"size": 65536, "gloo": [4e-4, 6e-4], "harp": [2e-4, 2e-4]}]
    row = cells(all_reduce.report(records))
    assert row == ["64 KiB", "500 (400–600)", "200 (200–200)", "2.50 (2.00–3.00)"]


def test_shared_memory_divides_links_times_by_windows() -> None:
    times = {"links": [4e-4, 6e-4, 8e-4], "windows": [2e-4, 2e-4, 2e-4]}
    cpu = {"links": [1e-3, 1e-3, 1e-3], "windows": [1e-3, 2e-3, 4e-3]}
    record = {"operation": "gather", "size": 65536, "seconds": times, "cpu_seconds": cpu}
    row = cells(shared_memory.report([record]))
    assert row == ["gather", "64 KiB", "3.0 (2.5–3.5)", "0.5 (0.4–0.8)"]


def ddp_record(last_loss: float) -> dict[str, Any]:
    return {
        "model": "wide",
        "losses": {"gloo": [2.0, 1.0], "harp": [2.0, last_loss]},
        "seconds": {"gloo": [9.0, 9.0, 0.2, 0.4], "harp": [9.0, 9.0, 0.1, 0.2]},
    }


def test_ddp_times_leave_out_the_warm_up() -> None:
    row = cells(ddp.report([ddp_record(1.0)], hosts=2))
    assert row[5:] == ["300.0 (200.0–400.0)", "150.0 (100.0–200.0)", "0.50"]


def test_ddp_difference_is_relative_to_gloos_loss() -> None:
    assert ddp.difference(ddp_record(0.75)) == 0.25


def test_ddp_loss_that_is_no_number_differs() -> None:
    assert ddp.difference(ddp_record(float("nan"))) > ddp.TOLERANCE


@pytest.mark.parametrize("hosts,named", [(2, "veth-1500"), (3, "veth-1500-bridge")])
def test_a_job_tells_the_wire_of_its_lab(
    hosts: int, named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class NoHosts(Lab):
        def __enter__(self) -> Lab:
            return self

        def __exit__(self, *_: object) -> None: ...

    @contextmanager
    def no_job(*_: object) -> Iterator[list[Any]]:
        record = {"size": 8, "gloo": [1.0], "harp": [1.0]}
        yield [SimpleNamespace(printed=[json.dumps(record)])]

    monkeypatch.setattr(lab_hosts, "Lab", NoHosts)
    monkeypatch.setattr(lab_hosts, "torch_job", no_job)
    monkeypatch.setattr(lab_hosts, "end_well", lambda *_: None)
    monkeypatch.setattr(lab_hosts, "require", lambda *_: None)
    file = tmp_path / "jobs.json"
    done = invoke("all-reduce", "--hosts", str(hosts), "--json", str(file))
    assert f"{hosts} hosts, {named}, " in done.output
    assert json.loads(file.read_text())["wire"] == named


class QuietTrial:
    """Stands for a trial whose job trains, and ends as its fault requires. stays: a rank that
    cannot be killed."""

    def __init__(self, stays: bool = False) -> None:
        self.cleared, self.stays = False, stays

    def trains(self) -> None: ...

    ends = trains

    def clear(self) -> None:
        self.cleared = True
        if self.stays:
            raise Misbehaved(HANG, "rank 1 does not print its 'status'")


def test_a_hang_is_told_and_the_next_trial_can_begin() -> None:
    def hang(_: Any) -> None:
        raise Misbehaved(HANG, "rank 1 does not print its 'end'")

    trial: Any = QuietTrial()
    fault = faults.Fault("stop", "a rank is stopped", WENT_ON, hang)
    assert faults.run_trial(fault, trial) == (HANG, "rank 1 does not print its 'end'")
    assert trial.cleared
    row = faults.Row(fault, [HANG, WENT_ON], [0.5, 1.5])
    assert cells(faults.report([row]))[3:] == ["1", "1", "0", "0", "0", "1.00", "1.50"]


def test_a_trial_that_cannot_be_cleared_is_a_hang() -> None:
    def end_otherwise(_: Any) -> None:
        raise Misbehaved(OTHER, "rank 0 has no exception")

    trial: Any = QuietTrial(stays=True)
    quiet = faults.Fault("slow", "a rank is slow", WENT_ON, lambda _: None)
    assert faults.run_trial(quiet, trial) == (HANG, "rank 1 does not print its 'status'")
    bad = faults.Fault("kill", "a rank is killed", WENT_ON, end_otherwise)
    end, text = faults.run_trial(bad, trial)
    assert end == HANG
    assert text == "rank 0 has no exception; rank 1 does not print its 'status'"


class EndedRanks(faults.Trial):
    """A trial of three ranks that have raised these texts at once. Rank 2 is the victim."""

    def __init__(self, *texts: str) -> None:
        self.ranks, self.victim, self.timeout_s = cast(Any, [None] * 3), 2, 1.0
        self.killed, self.errors, self.texts = [], [], texts

    def wait_for(self, number: int, key: str, seconds: float) -> dict[str, Any]:
        return {"end": ERROR, "at": 0.0, "text": self.texts[number]}

    def send(self, number: int, what: int) -> float:
        return 0.0


def lost(own: int, peer: int) -> str:
    return (f"all_reduce of rank {own}: the link to rank {peer} on host failed (ncclRemoteError). "
            "look at its log, and restart the job")  # fmt: skip


def test_exceptions_must_name_the_killed_rank() -> None:
    faults.kill(EndedRanks(lost(0, 2), lost(1, 2)))
    faults.kill(EndedRanks(lost(0, 2), lost(1, 0)))  # rank 1 saw rank 0 fail
    for texts, said in (
        ((lost(0, 1), lost(1, 0)), "no exception names rank 2"),
        ((lost(0, 2), "all_reduce of rank 1: restart the job"), "rank 1: it does not name two"),
        ((lost(0, 2), lost(1, 1)), "rank 1: it does not name two"),
        ((lost(0, 2), lost(1, 2).replace("restart", "end")), "rank 1: no remedy"),
    ):
        with pytest.raises(Misbehaved, match=said):
            faults.kill(EndedRanks(*texts))


def test_synthetic_needs_open_mpi_4(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mpirun").write_text("#!/bin/sh\n")  # that of another release
    (tmp_path / "mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match=r"no mpirun.openmpi \(Open MPI 4\) here: apt-get install"):
        mpirun(cast(Lab, None), tmp_path, 2, [], 1)


def test_mpiruns_remote_shell_keeps_spaces(tmp_path: Path) -> None:
    site = Site(tmp_path / "two words")
    script = write_remote_shell(tmp_path / "agent", {"10.0.0.1": site})
    args = [str(script), "10.0.0.1", 'echo "$HARP_CONF_DIR"', "$HARP_RUN_DIR", "$TMPDIR"]
    done = subprocess.run(args, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{site.folder} {site.run_folder} {site.folder}/tmp\n", done.stderr


def test_synthetic_reads_the_figure_of_the_right_job() -> None:
    output = "Img/sec per CPU: 6.4 +-0.7\nTotal img/sec on 2 CPU(s): 12.8 +-1.5\n"
    assert synthetic.images_per_second(output, 2) == 12.8
    with pytest.raises(LabError, match="no images per second of 4 ranks"):
        synthetic.images_per_second(output, 4)  # as of ranks that did not meet
    assert cells(synthetic.report({1: [5.0], 2: [8.0], 4: [10.0]}))[2] == "2.00 (2.00–2.00)"


def test_compression_divides_plains_time() -> None:
    record = {"size": 25 << 20, "ratio": 0.01, "plain": [0.42], "fp16": [0.21], "top-k": [0.07]}
    assert cells(compression.report(record)) == ["top-k", "70 (70–70)", "6.0 (6.0–6.0)", "50"]
    assert f"{compression.wire_share(record, mbps=1000):.2f}" == "0.50"


def test_recommender_needs_all_rows_and_their_values() -> None:
    right = {"rows": [3, 4], "rows_alone": 7, "loss_difference": 1e-7, "row_difference": 1e-7}
    assert recommender.is_right(right)
    for wrong in ({"rows": [7, 0]}, {"rows_alone": 8}, {"loss_difference": 1.0},
                  {"row_difference": float("nan")}):  # fmt: skip
        assert not recommender.is_right({**right, **wrong})


def steps_taken(attempts: str, last_loss: float = 0.5) -> list[dict[str, Any]]:
    """The records of steps 1 to 4, with the attempt of each, as "0011"."""
    found = [{"step": n, "attempt": int(one), "loss": 1.0} for n, one in enumerate(attempts, 1)]
    found[-1]["loss"] = last_loss
    return found


def test_fsdp_must_restart_at_its_checkpoint_and_end_alike() -> None:
    unbroken = steps_taken("0000")
    assert fsdp.problem(unbroken, steps_taken("0011"), 4) is None
    for broken, said in (
        (steps_taken("0000"), "was not restarted"),
        (steps_taken("1111"), "did not begin at its checkpoint"),
        (steps_taken("001"), "ended before step 4"),
        (steps_taken("0011", 0.51), "the last losses differ"),
    ):
        assert said in str(fsdp.problem(unbroken, broken, 4))


@pytest.mark.slow
@pytest.mark.torch
def test_fsdp_job_survives_the_loss_of_a_rank() -> None:
    done = invoke("fsdp", "--steps", "4")
    assert done.exit_code == 0, done.output


@pytest.mark.slow
@pytest.mark.torch
def test_recommender_gives_the_rows_of_one_process_or_fails() -> None:
    done = invoke("recommender", "--steps", "5")
    assert done.exit_code == 0, done.output
    wrong = invoke("recommender", "--steps", "5", "--inject-wrong")
    assert wrong.exit_code == 1
    assert "not those of one process" in wrong.output


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.skipif(not shutil.which(MPIRUN), reason="no Open MPI 4: apt-get install openmpi-bin")
def test_synthetic_runs_by_mpirun() -> None:
    done = invoke("synthetic", "--rounds", "1", "--iterations", "1", "--batch-size", "1")
    assert done.exit_code == 0, done.output
    assert [row.split("|")[1].strip() for row in done.output.splitlines()[-3:]] == ["1", "2", "4"]


@pytest.mark.slow
@pytest.mark.torch
def test_compression_is_timed() -> None:
    done = invoke("compression", "--rounds", "1", "--size", str(1 << 20), "--mbps", "200")
    assert done.exit_code == 0, done.output
    assert "| fp16 " in done.output


@pytest.mark.slow
@pytest.mark.torch
def test_each_rank_raises_or_goes_on() -> None:
    done = invoke("faults", "--times", "1", "--only", "kill", "--only", "slow")
    assert done.exit_code == 0, done.output


@pytest.mark.slow
@pytest.mark.torch
def test_all_reduce_is_timed(tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    sizes = ("--size", "8", "--size", "65536")
    done = invoke("all-reduce", "--rounds", "2", *sizes, "--json", str(file))
    assert done.exit_code == 0, done.output
    assert "| 64 KiB" in done.output
    records = json.loads(file.read_text())["records"]
    assert [one["size"] for one in records] == [8, 65536]
    assert all(len(one[name]) == 2 for one in records for name in ("gloo", "harp"))


@pytest.mark.slow
@pytest.mark.torch
def test_ddp_gives_gloos_losses_or_fails(tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    short = ("ddp", "--hosts", "2", "--steps", "6", "--model", "transformer")
    done = invoke(*short, "--json", str(file))
    assert done.exit_code == 0, done.output
    losses = json.loads(file.read_text())["records"][0]["losses"]
    assert losses["harp"][-1] < losses["harp"][0]  # it learns
    wrong = invoke(*short, "--inject-wrong")
    assert wrong.exit_code == 1
    assert "differs from Gloo's" in wrong.output
