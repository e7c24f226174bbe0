# SPDX-License-Identifier: Apache-2.0
"""tools/jobs torch-tests: torch's own tests of a backend, on the hosts of a lab."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Optional

import click

from tools.hosts.lab import Lab
from tools.hosts.ranks import START_S, wait_until
from tools.hosts.torch_job import TorchRank, sites, torch_job
from tools.measure.jobs import hosts as lab_hosts
from tools.measure.jobs.forks import Forks
from tools.measure.options import json_option
from tools.measure.tables import markdown

LOAD_S = 300.0  # for all ranks to load torch's tests, on a busy machine
TEST_S = 150.0  # for one test
FOLDERS = ("barrier", "test_dir", "init_dir")  # which torch's tests expect
ERROR_STATUS = 10  # of torch's class, after an exception

# Tests of what is no part of a backend, or what docs/torch.md refuses.
OUTSIDE = {
    **dict.fromkeys(
        ("test_monitored_barrier_gloo", "test_monitored_barrier_gloo_rank_0_timeout",
         "test_monitored_barrier_gloo_subgroup"),
        "torch's monitored_barrier refuses all backends but Gloo",
    ),
    "test_sparse_all_reduce_sum": "the backend harp refuses sparse tensors",
}  # fmt: skip

PASSED, FAILED, SKIPPED = "passed", "failed", "not applicable"


@dataclass
class Result:
    """How a test ended. like: the backend whose tests it belongs to. text: why it was skipped, or
    what failed."""

    name: str
    like: str
    end: str
    text: str = ""


def verdict(statuses: Sequence[int], told: Sequence[str]) -> tuple[str, str]:
    """The end of a test and its text, from the exit status and the text of each rank."""
    raised = [number for number, status in enumerate(statuses) if status == ERROR_STATUS]
    bad = [number for number, status in enumerate(statuses) if status and not told[number]]
    for number in (*raised, *bad):
        return FAILED, f"rank {number}: {told[number] or f'status {statuses[number]}'}"
    skips = [text for status, text in zip(statuses, told) if status]
    return (SKIPPED, skips[0]) if skips else (PASSED, "")


def run_test(ranks: Sequence[TorchRank], name: str) -> tuple[str, str]:
    """Runs a test in a fork of each rank. One that raises ends the others, as torch does it."""
    numbers = range(len(ranks))
    with tempfile.TemporaryDirectory() as folder:
        for inner in FOLDERS:
            (Path(folder) / inner).mkdir()
        forks = Forks(ranks, folder, name)

        def is_over() -> bool:
            ended = [end["status"] for number in numbers if (end := forks.find(number, "status"))]
            return len(ended) == len(ranks) or ERROR_STATUS in ended

        hang = ""
        try:
            wait_until(is_over, TEST_S, f"{name} has not ended", ranks)
        except AssertionError as late:
            hang = str(late)
        forks.clear()
        statuses = [forks.wait_for(number, "status", START_S)["status"] for number in numbers]
        told = [(forks.find(number, "told") or {"told": ""})["told"] for number in numbers]
    return (FAILED, hang) if hang else verdict(statuses, told)


def run_tests(
    lab: Lab, backend: str, like: str, chosen: Sequence[str], left: Optional[Sequence[str]]
) -> Iterator[Result]:
    """Runs torch's tests for the backend `like` on `backend`. chosen: only these, if any. left:
    only these, which an earlier call has skipped."""
    with tempfile.TemporaryDirectory() as folder:
        places = sites(Path(folder), lab, len(lab.hosts))
        program = lab_hosts.PROGRAMS / "torch_tests.py"
        with torch_job(places, program, backend, like) as ranks:
            why = "a rank does not load torch's tests"
            wait_until(lambda: all(rank.printed for rank in ranks), LOAD_S, why, ranks)
            for name, skip in lab_hosts.told(ranks[0])[0]["tests"].items():
                if (chosen and name not in chosen) or (left is not None and name not in left):
                    continue
                if backend == "harp":
                    skip = skip or OUTSIDE.get(name, "")
                end, text = (SKIPPED, skip) if skip else run_test(ranks, name)
                yield Result(name, like, end, text)


def report(results: Sequence[Result]) -> str:
    """A table of the ends, and one of the reasons with their tests."""
    ends = [[end, str(sum(one.end == end for one in results))] for end in (PASSED, FAILED, SKIPPED)]
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in results:
        if one.end != PASSED:
            reason = one.text.strip().splitlines()[-1] if one.text.strip() else "no reason"
            reasons.setdefault((one.end, reason), []).append(one.name)
    rows = [[end, why, str(len(names)), ", ".join(names)] for (end, why), names in reasons.items()]
    tables = [markdown(["torch's tests", "number"], ends, right=(1,))]
    if rows:
        tables.append(markdown(["end", "reason", "number", "tests"], rows, right=(2,)))
    return "\n\n".join(tables)


@click.command("torch-tests")
@lab_hosts.hosts_option(4)
@click.option("--backend", default="harp", show_default=True, help="The backend to test.")
@click.option("--like", "likes", multiple=True, default=("mpi", "gloo"), show_default=True,
              help="Also run the tests that torch keeps for this backend; repeatable.")  # fmt: skip
@click.option("--only", "chosen", multiple=True, help="Only this test; repeatable.")
@json_option("the results")
def torch_tests(
    hosts: int, backend: str, likes: tuple[str, ...], chosen: tuple[str, ...],
    json_path: Optional[Path],
) -> None:  # fmt: skip
    """Run torch's own tests of a backend, with a rank on each host.

    They come with torch, and need the packages numpy and expecttest. A test that torch keeps for
    other backends runs, too, if it is one of --like. The exit status is 1 if a test fails.
    """
    lab_hosts.require("torch", "numpy", "expecttest")
    results: dict[str, Result] = {}
    left: Optional[list[str]] = None
    with lab_hosts.failures_told(), Lab(hosts) as lab:
        for like in dict.fromkeys((backend, *likes)):
            for one in run_tests(lab, backend, like, chosen, left):
                if one.end != SKIPPED:
                    print(f"{one.name} (of {like}): {one.end}", flush=True)
                if one.end == FAILED:
                    print(one.text, flush=True)
                results[one.name] = one
            left = [name for name, one in results.items() if one.end == SKIPPED]
    print(f"\ntorch's tests of {backend}, {hosts} hosts, {lab.wire.name}\n")
    print(report(list(results.values())))
    records = [asdict(one) for one in results.values()]
    lab_hosts.save(json_path, records, wire=lab.wire.name, hosts=hosts, backend=backend)
    bad = sum(one.end == FAILED for one in results.values())
    if bad:
        raise click.ClickException(f"{bad} tests failed; see the lines above")
