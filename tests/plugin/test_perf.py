# SPDX-License-Identifier: Apache-2.0
"""harp perf over the kernel plugin: its output, records and exit status."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import pytest
from click.testing import CliRunner
from perf_ranks import Run, free_port, statuses

from harp import paths
from harp.cli import perf as perf_module
from tools.hosts.ranks import Site, remove_wire, wait_until, wire_path, wire_site

PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
FIELDS = """
    wire transport api op dtype size direction outstanding rate_gbs time_us algbw_gbs busbw_gbs
    wrong cpu_s_per_gb nranks flows mtu offloads pair kernel_cc nsocks p50_us p99_us channels
    version
""".split()


def records(tmp_path: Path, args: Sequence[object], ranks: int = 2) -> list[dict[str, Any]]:
    """The records of a run that must succeed."""
    file = tmp_path / "out.json"
    ended = Run([*args, "--kernel", "--json", file], ranks).finish()
    assert statuses(ended) == [0] * ranks, ended
    found = json.loads(file.read_text())
    assert found["schema"] == "harp.perf/1"
    return found["records"]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("api", [4, 5, 6, 7, 8, 9, 10, 11, 12])
def test_all_reduce_over_every_api_version(tmp_path: Path, api: int) -> None:
    args = ["all_reduce", "--api", api, "-b", "4", "-e", "1M", "-f", "64", "-n", "3"]
    assert [r["wrong"] for r in records(tmp_path, args)] == [0] * 4


@pytest.mark.parametrize("op", ["sendrecv", "sendrecv_bidir", "pingpong"])
def test_operations_between_two_ranks(tmp_path: Path, op: str) -> None:
    found = records(tmp_path, [op, "-b", "0", "-e", "1000003", "-f", "1000003", "-n", "9"])
    assert [r["size"] for r in found] == [0, 1, 1_000_003]
    for r in found:
        assert (r["op"], r["wrong"]) == (op, 0)
        assert (r["p50_us"] is not None) == (op == "pingpong")


@pytest.mark.skipif(not PAGES.exists(), reason="this kernel has no hugepages of 2 MiB")
def test_missing_hugepages_for_messages_are_reported() -> None:
    """tests/vm has a test with enough hugepages."""
    (total,) = re.findall(r"^MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    beyond = ((int(total) >> 11) + 1) << 21
    args = ["sendrecv", "--kernel", "--hugepages", "-b", beyond, "-e", beyond]
    for status, _, err in Run(args).finish():
        assert status == 1
        assert f"no memory for messages of {beyond} bytes: lower -e, or set hugepages" in err


@pytest.mark.parametrize("ranks", [3, 4])
def test_ring_all_reduce_is_correct(tmp_path: Path, ranks: int) -> None:
    """Some sizes leave ranks without data of their own, and some are no multiple of the ranks."""
    args = ["all_reduce", "-b", "4", "-e", "12M", "-f", "7", "-n", "2"]
    found = records(tmp_path, args, ranks)
    assert all(r["wrong"] == 0 and r["nranks"] == ranks for r in found)
    assert len(found) == 8
    for r in found:
        assert r["busbw_gbs"] == pytest.approx(r["algbw_gbs"] * 2 * (ranks - 1) / ranks)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("op", ["reduce_scatter", "all_gather", "all_to_all", "broadcast"])
def test_collectives_are_correct(tmp_path: Path, op: str, ranks: int) -> None:
    """busbw is that of nccl-tests, whose sizes are multiples of a block for each rank. Small steps
    make many loops, and some messages leave no bytes."""
    args = [op, "-b", "8", "-e", "3M", "-f", "37", "-n", "3", "--step", "64K"]
    found = records(tmp_path, args, ranks)
    block = 1 if op == "broadcast" else 4 * ranks
    assert [r["size"] for r in found] == [8 * 37**n // block * block for n in range(4)]
    factor = 1 if op == "broadcast" else (ranks - 1) / ranks
    for r in found:
        assert (r["op"], r["wrong"], r["nranks"]) == (op, 0, ranks)
        assert r["busbw_gbs"] == pytest.approx(r["algbw_gbs"] * factor)


@pytest.mark.parametrize("datatype", perf_module.DATATYPES)
def test_sums_of_every_datatype(tmp_path: Path, datatype: str) -> None:
    op = "reduce_scatter" if "64" in datatype else "all_reduce"
    args = [op, "--sizes", "48K:3", "--step", "4K", "--datatype", datatype, "--verified"]
    (found,) = records(tmp_path, args, 3)
    assert (found["dtype"], found["wrong"]) == (datatype, 0)
    assert statuses(Run([*args, "--kernel", "--inject-wrong"]).finish()) == [1, 1]


@pytest.mark.parametrize("args", [["sendrecv"], ["all_reduce", "--datatype", "float32"]])
def test_step_is_any_multiple_of_an_element(tmp_path: Path, args: list[str]) -> None:
    (found,) = records(tmp_path, [*args, "--sizes", "48K:3", "--step", "4100", "--verified"])
    assert found["wrong"] == 0


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--step", "4100", "--datatype", "int64"], "--step 4100: give a multiple of 8 bytes"),
        (["--step", "4098"], "--step 4098: give a multiple of 4 bytes"),
        (["--sizes", "8,6"], "a message of 6 bytes: all_reduce adds up elements of 4 bytes"),
    ],
)
def test_size_that_cuts_an_element_is_named(args: list[str], why: str) -> None:
    for status, _, said in Run(["all_reduce", "--kernel", *args]).finish():
        assert status == 2 and why in said, said


def test_record_has_every_field(tmp_path: Path) -> None:
    args = ["sendrecv", "-b", "1M", "-e", "1M", "-n", "50", "--nsocks", "2", "--api", "8"]
    args += ["--wire-name", "veth-1500", "--label-mtu", "1500"]
    args += ["--label-pair", "0", "--label-offloads", "on"]
    (found,) = records(tmp_path, args)
    assert list(found) == FIELDS
    assert found["algbw_gbs"] == pytest.approx(found["size"] / found["time_us"] / 1e3)
    expected = {
        "wire": "veth-1500", "transport": "kernel-tcp", "api": 8, "dtype": "uint8", "nsocks": 2,
        "kernel_cc": "cubic", "direction": "0->1", "outstanding": 8, "mtu": 1500, "pair": 0,
        "flows": None, "offloads": "on", "rate_gbs": None, "p50_us": None, "nranks": 2,
        "channels": 1,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


def test_table_that_cannot_be_written_is_a_failure() -> None:
    into_full = ["sh", "-c", 'exec "$@" >/dev/full', "sh"]
    run = Run(["sendrecv", "--kernel", "--sizes", "8:2"], starter=lambda rank: into_full)
    (status, _, said), (other, _, _) = run.finish()
    assert (status, other) == (1, 0) and "the table could not be written completely" in said


def test_record_has_the_settings_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the kernel plugin may come from the environment, too."""
    monkeypatch.setenv("HARP_KERNEL_CC", "reno")
    monkeypatch.setenv("HARP_KERNEL_NSOCKS", "4")
    (found,) = records(tmp_path, ["sendrecv", "--sizes", "8:2"])
    assert (found["kernel_cc"], found["nsocks"]) == ("reno", 4)


@pytest.mark.parametrize(
    "op", ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "sendrecv", "sendrecv_bidir"]
)
def test_channels_divide_messages(tmp_path: Path, op: str) -> None:
    """Some sizes leave channels without data, and some are no multiple of the channels."""
    args = [op, "-b", "4", "-e", "2M", "-f", "13", "-n", "3", "--channels", "3", "--step", "64K"]
    found = records(tmp_path, args)
    assert len(found) == 6
    assert all((r["wrong"], r["channels"]) == (0, 3) for r in found)


def test_failure_names_channel() -> None:
    args = ["all_reduce", "--kernel", "-b", "4M", "-e", "4M", "-n", "100000", "--channels", "2"]
    run = Run(args)
    until_caught(run.processes[1], signal.SIGINT)
    time.sleep(1)
    run.processes[0].kill()
    status, _, said = run.finish()[1]
    assert status == 1
    assert re.search(r"4194304 bytes: channel [01]: (isend|irecv) of message \d+ of", said)


def test_rate_option_limits_throughput(tmp_path: Path) -> None:
    args = ["sendrecv", "-b", "64K", "-e", "64K", "-n", "400", "--rate", "0.8"]
    (found,) = records(tmp_path, args)
    assert found["rate_gbs"] == pytest.approx(0.1)
    assert 0.02 < found["algbw_gbs"] < 0.105  # a busy machine is slower; bits would be 0.0125


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("op", ["sendrecv", "sendrecv_bidir"])
def test_resting_ranks_sleep_between_messages(tmp_path: Path, op: str) -> None:
    args = [op, "-b", "64K", "-e", "64K", "-n", "100", "-w", "0", "--rate", "0.05", "--rest"]
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    (found,) = records(tmp_path, args)
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert 0.003 < found["algbw_gbs"] < 0.0065
    assert wall > 2  # a timed and a verified pass of a second each
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < wall / 2


def test_sizes_have_their_own_iterations(tmp_path: Path) -> None:
    args = ["pingpong", "--sizes", "64K:3:1,8,4K:20", "-n", "7", "-e", "1M"]
    assert [(r["size"], r["wrong"]) for r in records(tmp_path, args)] == [
        (65536, 0),
        (8, 0),
        (4096, 0),
    ]


def test_verified_iterations_limit_verified_pass(tmp_path: Path) -> None:
    args = ["sendrecv", "--verified", "-b", "1M", "-e", "1M", "-n", "1000000"]
    (found,) = records(tmp_path, [*args, "--verified-iterations", "2"])  # a million take minutes
    assert found["wrong"] == 0


def test_mixed_operation_has_no_time(tmp_path: Path) -> None:
    """Messages of many sizes in both directions have no common size, and so no time."""
    (found,) = records(tmp_path, ["mixed", "-b", "1M", "-e", "1M", "-n", "2000"])
    assert (found["wrong"], found["time_us"], found["algbw_gbs"]) == (0, None, None)


def test_verified_option_skips_timed_pass(tmp_path: Path) -> None:
    found = records(tmp_path, ["all_reduce", "-b", "4K", "-e", "64K", "-f", "16", "--verified"])
    assert [(r["size"], r["wrong"]) for r in found] == [(4096, 0), (65536, 0)]
    assert [r["time_us"] for r in found] == [None, None]


def until_caught(process: "subprocess.Popen[str]", number: int) -> None:
    """Waits until the process handles the signal. Before that, the signal would kill it."""
    for _ in range(600):
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = re.search(r"SigCgt:\s*([0-9a-f]+)", status)
        if caught and int(caught[1], 16) >> (number - 1) & 1:
            return
        time.sleep(0.05)
    raise AssertionError(f"signal {number} is not waited for")


def test_failed_pass_reports_wrong_bytes() -> None:
    """A pass that fails reports the wrong bytes that came before."""
    args = ["all_reduce", "--kernel", "-b", "1M", "-e", "1M", "-n", "1000000", "--verified"]
    run = Run([*args, "--inject-wrong"])
    until_caught(run.processes[1], signal.SIGINT)  # the pass has begun
    time.sleep(1)
    run.processes[0].kill()
    _, _, said = run.finish()[1]
    ((come, wrong),) = re.findall(r"(\d+) messages had come before that, with (\d+) wrong", said)
    assert int(come) > 0 and int(wrong) > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_ranks_report_received_messages(number: int) -> None:
    """The interrupted rank and the other rank report the messages that they have received."""
    args = ["all_reduce", "--kernel", "-b", "1M", "-e", "1M", "-n", "1000000", "--verified"]
    run = Run(args)
    for process in run.processes:
        until_caught(process, signal.SIGINT)
    time.sleep(1)
    run.processes[0].send_signal(number)
    ended = run.finish()
    assert statuses(ended) == [1, 1]
    assert "a signal ended the pass" in ended[0][2]
    for _, _, said in ended:
        assert re.search(r"\d+ messages had come before that, with 0 wrong", said)


def variables_of_sites(folder: Path) -> dict[str, str]:
    """For all ranks, whose sites are in the folder under their numbers."""
    return {"HARP_CONF_DIR": f"{folder}/{{rank}}", "HARP_RUN_DIR": f"{folder}/{{rank}}/run"}


def test_rank_0_names_a_rank_whose_plugin_declines(tmp_path: Path) -> None:
    """It does not wait for the time limit."""
    wire = wire_path()
    wire_site(tmp_path / "0", wire, 1)
    Site(tmp_path / "1")  # without a configuration
    try:
        ended = Run(["sendrecv"], environment=variables_of_sites(tmp_path)).finish(50)
    finally:
        remove_wire(wire)
    assert statuses(ended) == [1, 1]
    assert "declines: init" in ended[1][2]
    assert "rank 1 does not take part: read the output there" in ended[0][2]


def test_statistics_tell_the_rank_without_a_launcher(tmp_path: Path) -> None:
    wire = wire_path()
    sites = [wire_site(tmp_path / str(rank), wire, rank + 1) for rank in range(2)]
    args = ["sendrecv", "-b", "64K", "-e", "64K", "-n", "1000000", "--verified", "--rate", "0.1"]
    run = Run(args, environment=variables_of_sites(tmp_path))

    def published() -> Optional[list[tuple[int, int]]]:
        found = [one for site in sites for one in site.published()]
        return [(one.rank, one.world_size) for one in found] if len(found) == 2 else None

    try:
        assert wait_until(published, 30, "no statistics") == [(0, 2), (1, 2)]
    finally:
        for process in run.processes:
            process.terminate()
        run.finish()
        remove_wire(wire)


@pytest.mark.slow
def test_paused_rank_delays_other_rank() -> None:
    """The other rank waits for the paused one."""
    args = ["all_reduce", "--kernel", "-b", "64K", "-e", "64K", "-n", "1000", "--verified"]
    run = Run([*args, "--rate", "0.5", "--pause", "3000"])
    began = time.monotonic()
    until_caught(run.processes[1], signal.SIGUSR1)
    run.processes[1].send_signal(signal.SIGUSR1)
    assert statuses(run.finish()) == [0, 0]
    assert time.monotonic() - began > 3


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_rank_that_waits_too_long_for_the_other_reports_it() -> None:
    args = ["all_reduce", "--kernel", "-b", "64K", "-e", "64K", "-n", "1000000", "--verified"]
    run = Run([*args, "--rate", "0.5", "--pause", "3600000", "--timeout", "5"])
    waiting, paused = run.processes
    try:
        until_caught(paused, signal.SIGUSR1)
        paused.send_signal(signal.SIGUSR1)
        _, said = waiting.communicate(timeout=300)  # a starved rank is slow to fail
    finally:
        for process in run.processes:
            process.kill()
        run.finish()
    assert waiting.returncode == 1
    assert "is not complete after" in said and "no progress within --timeout" in said


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "op,channels", [*((op, 1) for op in perf_module.OPERATIONS), ("all_reduce", 2), ("sendrecv", 2)]
)
def test_injected_wrong_byte_is_detected(op: str, channels: int) -> None:
    args = [op, "--kernel", "-b", "8", "-e", "800K", "-f", "100000", "-n", "4", "--inject-wrong"]
    args += ["--channels", str(channels)]
    ended = Run(args).finish()
    assert statuses(ended) == [1, 1]
    wrong = [int(line.split()[8]) for line in ended[0][1].splitlines() if line[0] != "#"]
    assert len(wrong) == 2 and all(wrong)
    assert "elements arrived wrong" in ended[0][2]


@pytest.mark.slow
@pytest.mark.parametrize("api,code", [(4, "ncclSystemError"), (12, "ncclRemoteError")])
@pytest.mark.parametrize("victim", [0, 1])
def test_killed_rank_fails_survivor(api: int, code: str, victim: int) -> None:
    run = Run(["all_reduce", "--kernel", "-b", "4M", "-e", "4M", "-n", "100000", "--api", api])
    for process in run.processes:
        until_caught(process, signal.SIGINT)  # the pass has begun
    time.sleep(0.2)
    run.processes[victim].kill()
    killed = time.monotonic()
    survivor = run.finish()[1 - victim]
    assert time.monotonic() - killed < 20  # the kernel resets the connection; retries take minutes
    assert survivor[0] == 1
    assert re.search(
        rf"(isend|irecv) of message \d+ of \d+ failed after .* ms.*: {code}", survivor[2]
    )


def test_missing_peer_times_out() -> None:
    args = [paths.perf_program(), "sendrecv", "--kernel", "--timeout", "1", "--nranks", "2"]
    args += ["--rendezvous", f"127.0.0.1:{free_port()}", "--rank"]
    for rank in ("0", "1"):
        alone = subprocess.run(
            [*map(str, args), rank], capture_output=True, text=True, timeout=20,
            env={**os.environ, "NCCL_SOCKET_IFNAME": "lo"},
        )  # fmt: skip
        assert alone.returncode == 1
        assert "within 1000 ms" in alone.stderr and "read the output there" in alone.stderr
        assert rank == "1" or "rank 1 of 2 did not connect to 127.0.0.1:" in alone.stderr


def test_first_missing_ranks_are_named() -> None:
    args = [paths.perf_program(), "all_reduce", "--kernel", "--timeout", "1", "--nranks", "11"]
    alone = subprocess.run(
        [*map(str, args), "--rank", "0", "--rendezvous", f"127.0.0.1:{free_port()}"],
        capture_output=True, text=True, timeout=100,
        env={**os.environ, "NCCL_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    assert "ranks 1, 2, 3, 4, 5, 6, 7, 8, ... of 11 did not connect" in alone.stderr


def test_declining_plugin_is_reported() -> None:
    ended = Run(["sendrecv", "--kernel"], environment={"HARP_KERNEL_NSOCKS": "3"}).finish()
    for status, _, said in ended:
        assert status == 1
        assert "declines: init" in said and "set it to 1, 2 or 4" in said


@pytest.mark.parametrize(
    "environment",
    [
        {"OMPI_COMM_WORLD_RANK": "{rank}", "OMPI_COMM_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"},
        {"RANK": "{rank}", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "PORT"},
        {
            "SLURM_PROCID": "{rank}",
            "SLURM_NTASKS": "2",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_NODELIST": "127.0.0.[1-2]",
            "SLURM_JOB_NODELIST": "192.0.2.[1-2]",
        },
        {
            "OMPI_COMM_WORLD_RANK": "{rank}",
            "OMPI_COMM_WORLD_SIZE": "2",
            "SLURM_PROCID": "5",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_NODELIST": "192.0.2.1",
            "SLURM_JOB_NODELIST": "127.0.[0,4-5].1,192.0.2.2",
        },
    ],
    ids=["mpirun", "torchrun", "srun", "mpirun-in-slurm"],
)
def test_launcher_variables_set_ranks(environment: dict[str, str]) -> None:
    environment = {**environment, "MASTER_PORT": str(free_port() - 1)}
    args = ["sendrecv", "--kernel", "-b", "8", "-e", "8"]
    assert statuses(Run(args, environment=environment, told=False).finish()) == [0, 0]


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["gather"],
        ["sendrecv", "sendrecv"],
        ["all_gather", "--datatype", "int32"],
        ["all_reduce", "--datatype", "float16"],
        ["all_reduce", "--datatype", "float64", "--sizes", "12"],
        ["all_to_all", "--channels", "2"],
        ["all_to_all", "--nranks", "34"],
        ["sendrecv", "--frobnicate"],
        ["sendrecv", "-b", "1X"],
        ["sendrecv", "-b", "2M", "-e", "1M"],
        ["sendrecv", "-n", "0"],
        ["sendrecv", "--sizes", ""],
        ["sendrecv", "--sizes", "8:0"],
        ["sendrecv", "--sizes", "8:1:1:1"],
        ["all_reduce", "--sizes", "8,6"],
        ["sendrecv", "--rest"],
        ["pingpong", "--rest", "--rate", "1"],
        ["all_reduce", "--pause", "0"],
        ["sendrecv", "--nsocks", "2"],
        ["sendrecv", "--kernel", "--nsocks", "3"],
        ["sendrecv", "--kernel", "--plugin", "/x"],
        ["sendrecv", "--api", "3"],
        ["all_reduce", "-b", "6"],
        ["sendrecv", "--nranks", "3"],
        ["sendrecv", "--channels", "33"],
        ["pingpong", "--channels", "2"],
        ["sendrecv", "--rank", "2"],
        ["sendrecv", "--rendezvous", "nowhere"],
    ],
)  # fmt: skip
def test_wrong_usage_exits_2(args: list[str]) -> None:
    complete = {"--rank": "0", "--nranks": "2", "--rendezvous": "127.0.0.1:1"}
    for name, value in complete.items():
        if name not in args:
            args = [*args, name, value]
    done = subprocess.run(
        [str(paths.perf_program()), *args], capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 2
    assert "harp perf: " in done.stderr and "--help" in done.stderr


def test_rank_0_of_slurm_on_another_node_exits_2() -> None:
    step = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "gpu[1-2]"}
    done = subprocess.run(
        [str(paths.perf_program()), "sendrecv"],
        capture_output=True,
        text=True,
        env={**os.environ, "SLURMD_NODENAME": "gpu2", **step},
        timeout=20,
    )
    assert done.returncode == 2
    assert "rank 0 on gpu2 and not on gpu1" in done.stderr and "set MASTER_ADDR" in done.stderr


def test_missing_rank_exits_2() -> None:
    unset = {k: v for k, v in os.environ.items() if "RANK" not in k and "SLURM" not in k}
    done = subprocess.run(
        [str(paths.perf_program()), "sendrecv"],
        capture_output=True,
        text=True,
        env=unset,
        timeout=20,
    )
    assert done.returncode == 2 and "--rank" in done.stderr


class TestCommand:
    """The Python command passes its options to the program."""

    def test_options_match_program_help(self) -> None:
        told = subprocess.run(
            [str(paths.perf_program()), "--help"], capture_output=True, text=True, timeout=20
        )
        assert told.returncode == 0
        args = set(re.findall(r"--[a-z-]+", told.stdout))
        args.discard("--help")
        passed = [p for p in perf_module.perf.params[1:] if p.name not in perf_module.OWN_NAMES]
        assert args == {max(p.opts, key=len) for p in passed}

    def test_options_are_passed_to_program(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[list[str]] = []
        monkeypatch.setattr(os, "execv", lambda program, args: seen.append(args))
        asked = [
            "sendrecv",
            "-b",
            "1M",
            "--kernel",
            "--nsocks",
            "2",
            "--kernel-cc",
            "bbr",
            "-n",
            "7",
        ]
        done = CliRunner().invoke(perf_module.perf, asked)
        assert done.exit_code == 0, done.output
        ((program, op, *args),) = seen
        assert (program, op) == (str(paths.perf_program()), "sendrecv")
        handed_over = "--min 1M --kernel --nsocks 2 --kernel-cc bbr --iterations 7"
        assert args == handed_over.split()

    @pytest.mark.parametrize(
        "args",
        [
            ["gather"],
            ["all_gather", "--datatype", "int32"],
            ["sendrecv", "-b", "1X"],
            ["sendrecv", "--nsocks", "2"],
            ["sendrecv", "--kernel", "--plugin", __file__],
            ["sendrecv", "--kernel", "--flows", "2"],
            ["sendrecv", "--mtu", "1500"],
            ["sendrecv", "--rendezvous", "nowhere"],
            ["sendrecv", "--api", "13"],
            ["sendrecv", "--hosts", "alone"],
            ["sendrecv", "--hosts", "a,-oProxyCommand=x"],
            ["sendrecv", "--hosts", "localhost,b"],  # its address means another host on b
            ["sendrecv", "--hosts", "10.0.0.1,b", "--rank", "0"],
            ["sendrecv", "--html", "x.html", "--kernel"],
            ["sendrecv", "--hosts", "10.0.0.1,b", "--ssh", "ssh 'x"],
            ["sendrecv", "--hosts", "10.0.0.1,b", "--ssh", " "],
            ["sendrecv", "--hosts", "10.0.0.1,b", "--remote-harp", ""],
        ],
    )
    def test_wrong_usage_exits_2(self, args: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "execv", lambda program, args: pytest.fail("it went on"))
        assert CliRunner().invoke(perf_module.perf, args).exit_code == 2

    def test_ranks_started_by_hand_make_a_page(self, tmp_path: Path) -> None:
        """Rank 0 writes it, and the other rank writes nothing. The kernel's plugin stands for
        HARP's, which needs a configuration. The page is UTF-8 in a locale with ASCII, too."""
        pages = [tmp_path / "0.html", tmp_path / "1.html"]
        args = ["pingpong", "--sizes", "8:5", "--plugin", str(paths.kernel_plugin_path())]
        args += ["--nranks", "2", "--rendezvous", f"127.0.0.1:{free_port()}", "--timeout", "20"]
        ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "harp", "perf", *args, "--rank", str(rank), "--html", page],
                env={**os.environ, "NCCL_SOCKET_IFNAME": "lo", **ascii_locale},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank, page in enumerate(pages)
        ]
        said = [rank.communicate(timeout=60)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], said
        assert [page.exists() for page in pages] == [True, False]
        assert pages[0].read_text(encoding="utf-8").count("<polyline") == 4

    def test_page_is_opened_before_measuring(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """On the rank that writes it: the folder may be missing on the others' hosts."""
        measured = []
        monkeypatch.setattr(perf_module, "_measure", lambda *_: measured.append(1) or 1)
        args = ["pingpong", "--nranks", "2", "--rendezvous", "127.0.0.1:5000", "--html"]
        page = tmp_path / "missing" / "page.html"
        done = CliRunner().invoke(perf_module.perf, [*args, str(page), "--rank", "0"])
        assert (done.exit_code, measured) == (1, []) and "is the folder there" in done.output
        CliRunner().invoke(perf_module.perf, [*args, str(page), "--rank", "1"])
        assert measured == [1]
        page = tmp_path / "page.html"
        CliRunner().invoke(perf_module.perf, [*args, str(page), "--rank", "0"])
        assert measured == [1, 1] and not page.exists()

    def test_missing_program_exits_1(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("HARP_BUILD_DIR", str(tmp_path))
        done = CliRunner().invoke(perf_module.perf, ["sendrecv", "--kernel"])
        assert done.exit_code == 1
        assert "meson compile" in done.output
