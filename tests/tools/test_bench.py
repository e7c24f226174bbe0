# SPDX-License-Identifier: Apache-2.0
"""tools/bench: rows, trials and pairs, targets, verdicts, and the tool's options."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest
from click.testing import CliRunner

from harp import paths
from tools.hosts.lab import Lab
from tools.measure import bench, bench_run, copies, instructions
from tools.measure.bench_cells import Cell, judge, transport_of
from tools.measure.bench_output import table, verdict
from tools.measure.bench_plan import (
    CPU,
    ETHDEV,
    FULL,
    HARP,
    KERNEL,
    KIB,
    MIB,
    P50,
    P99,
    QUICK,
    RATE,
    RAW_SHARED,
    TIME,
    XDP,
    Row,
    Target,
    metric_of,
)
from tools.measure.instructions import BOTH, FEW, MANY, Cost
from tools.measure.load import compute_loops
from tools.measure.records import make_record
from tools.measure.runner import (
    HarpPacket,
    HarpXdp,
    KernelTcp,
    OtherPlugin,
    RunError,
    SizeList,
    Task,
    Transport,
)
from tools.measure.shared import DIRECTIONS

STREAM = Row("veth-1500", "sendrecv", MIB)
TRIP = Row("veth-1500", "pingpong", 8)
REDUCE = Row("veth-1500", "all_reduce", 64 * KIB, hosts=4)


def cell(row: Row, ours: Sequence[Optional[float]], theirs: Sequence[Optional[float]]) -> Cell:
    """A cell with these figures by pair; None: a failed run."""
    transports = (KERNEL, HARP) + (("iperf3",) if row.op == "sendrecv" else ())
    made = Cell(row, transports, {HARP: "harp", KERNEL: "kernel"})
    for transport, figures in ((HARP, ours), (KERNEL, theirs)):
        for pair, figure in enumerate(figures):
            if figure is not None:
                fields = {"cpu_s_per_gb": 0.1, "p99_us": 9, metric_of(row.op).field: figure}
                made.keep(make_record(transport=transport, pair=pair, **fields))
    return made


# -- rows and targets


def test_row_names_are_unique() -> None:
    names = [row.name for row in FULL.rows]
    assert len(set(names)) == len(names)
    assert {row.name for row in QUICK.rows} <= set(names)


@pytest.mark.parametrize(
    "pattern, names",
    [
        ("veth-1500 sendrecv 64K", ["veth-1500 sendrecv 64K"]),
        ("VETH-1500 busy", ["veth-1500 sendrecv 1M busy", "veth-1500 pingpong 8B busy",
                            "veth-1500 all_reduce 64K 2-hosts busy"]),
        ("vhost-* pingpong", ["vhost-1500 pingpong 8B", "vhost-9000 pingpong 8B",
                              "vhost-tso pingpong 8B"]),
        ("10-gbit", ["veth-1500 sendrecv 1M 10-gbit", "veth-9000 sendrecv 1M 10-gbit"]),
        ("veth-1500 64", []),
    ],
)  # fmt: skip
def test_patterns_choose_rows_by_words(pattern: str, names: list[str]) -> None:
    plan = QUICK.limited([pattern], 3)
    assert [row.name for row in plan.rows] == names and plan.pairs == 3
    assert {target.row for target in plan.targets} <= set(plan.rows)


@pytest.mark.parametrize(
    "name, targets",
    [
        ("veth-9000 sendrecv 64K", [(RATE, 1.3, None), (CPU, 1.0, None)]),
        ("veth-1500 sendrecv 128K", [(CPU, 1.0, None)]),
        ("veth-1500 sendrecv 8M", [(RATE, 0.95, 1.0), (CPU, 1.0, None)]),
        (
            "veth-9000-nooff sendrecv 1M",
            [(RATE, 0.8, 1.0), (RATE, 1.0, None), (CPU, 0.9, None)],
        ),
        ("veth-1500-nooff pingpong 8B", [(P50, 0.8, None), (P99, 1.0, 0.7), (P50, 0.8, None)]),
        ("veth-1500 sendrecv 1M 10-gbit", [(CPU, 1.0, 0.8)]),
        ("veth-1500 sendrecv_bidir 1M", [(RATE, 1.0, None)]),
        ("veth-1500 pingpong 4K", [(P50, 0.8, None), (P99, 1.0, 0.7)]),
        ("veth-1500 pingpong 64K", []),
        ("veth-1500 all_reduce 8B 2-hosts", [(TIME, 1.0, 0.8)]),
        ("veth-1500 all_reduce 8M 4-hosts", [(TIME, 1.1, None)]),
        ("veth-1500 sendrecv 1M busy", [(RATE, 0.9, None)]),
        ("veth-1500 pingpong 8B busy", [(P50, 1.2, None)]),
        ("veth-1500 all_reduce 64K 2-hosts busy", [(TIME, 1.1, None)]),
        ("vhost-9000 sendrecv 8M", [(RATE, 1.5, None), (RATE, 1.5, None)]),
        ("vhost-tso pingpong 8B", [(P50, 0.2, None), (P99, 0.4, None)]),
    ],
)
def test_rows_have_targets(name: str, targets: list[tuple[object, float, Optional[float]]]) -> None:
    found = [target for target in QUICK.targets if target.row.name == name]
    assert [(one.metric, one.bound, one.aim) for one in found] == targets


def test_xdp_is_compared_with_the_kernel_and_with_packet() -> None:
    targets = [one for one in QUICK.targets if one.ours == XDP and one.row.size == MIB]
    first = [one for one in targets if one.row.wire == "veth-1500-nooff"]
    assert [(one.theirs, one.metric, one.bound, one.aim) for one in first] == [
        (KERNEL, RATE, 1.15, 1.4),
        (KERNEL, CPU, 0.9, None),
        (HARP, RATE, 1.4, None),
    ]
    made = Cell(STREAM, (KERNEL, HARP, XDP))
    for transport, figure in ((KERNEL, 10.0), (HARP, 8.0), (XDP, 11.6)):
        made.keep(make_record(transport=transport, pair=0, cpu_s_per_gb=0.1, algbw_gbs=figure))
    over_kernel, _, over_packet = (replace(one, row=STREAM) for one in first)
    assert [one.met for one in judge([made], [over_kernel, over_packet])] == [True, True]
    assert not judge([made], [replace(over_packet, bound=1.46)])[0].met


def test_targets_are_judged_at_their_bound() -> None:
    speed = Target(STREAM, RATE, HARP, KERNEL, 0.6, aim=1.0)
    trip = Target(TRIP, P50, HARP, KERNEL, 1.0)
    tail = Target(TRIP, P99, HARP, KERNEL, 1.0)
    other = Target(Row("veth-9000", "sendrecv", MIB), RATE, HARP, KERNEL, 0.6)
    cells = [cell(STREAM, [0.59, 5.9], [1, 10]), cell(TRIP, [11, 12], [10, 10])]
    said = [str(verdict(one)) for one in judge(cells, [speed, trip, tail, other])]
    assert said == [
        "missed  veth-1500, sendrecv 1 MiB: GB/s ≥ 0.6× (1.0×) kernel-tcp: 0.59× (0.59–0.59)",
        "missed  veth-1500, pingpong 8 B: p50 ≤ 1.0× kernel-tcp: 1.15× (1.10–1.20)",
        "met     veth-1500, pingpong 8 B: p99 ≤ 1.0× kernel-tcp: 1.00× (1.00–1.00)",
        "missed  veth-9000, sendrecv 1 MiB: GB/s ≥ 0.6× kernel-tcp: not measured",
    ]
    met = [cell(STREAM, [6, 6, 6], [10, 10, 10]), cell(TRIP, [10], [10])]
    assert all(one.met for one in judge(met, [speed, trip]))


def test_targets_over_shared_memory_say_so() -> None:
    row = Row("vhost-tso", "sendrecv", MIB)
    assert Target(row, RATE, ETHDEV[0], KERNEL, 1.2).text() == (
        f"vhost-tso (shared memory), sendrecv 1 MiB: GB/s of {ETHDEV[0]} ≥ 1.2× kernel-tcp"
    )


def test_failed_run_drops_only_its_pair() -> None:
    ratio = cell(STREAM, [6, None, 8], [10, 1, 10]).ratio(HARP, KERNEL)
    assert ratio and (ratio.low, ratio.high, ratio.count) == (0.6, 0.8, 2)


def test_failed_transport_stays_in_table() -> None:
    text = table([cell(STREAM, [], [10, 10])])
    assert "harp-packet: failed" in text and "iperf3: failed" in text
    assert "10.00 (10.00–10.00)" in text


def test_all_reduce_is_compared_by_time() -> None:
    made = cell(REDUCE, [30], [20])
    assert judge([made], [Target(REDUCE, TIME, HARP, KERNEL, 1.1)])[0].met is False
    assert "all_reduce 64 KiB, 4 hosts" in table([made])


def test_directions_over_shared_memory_have_own_lines() -> None:
    """A Target without a matching line would always be "not measured"."""
    for number, direction in enumerate(DIRECTIONS):
        records = [
            make_record(transport="harp-ethdev", direction=direction),
            {**make_record(transport="raw", direction=direction), "copy": False},
            {**make_record(transport="raw", direction=direction), "copy": True},
        ]
        lines = [ETHDEV[number], *RAW_SHARED[2 * number : 2 * number + 2]]
        assert [transport_of(record) for record in records] == lines
    assert transport_of(make_record(transport="raw", direction="0->1")) == "raw"


# -- runs


class Runs:
    """run_perf with made-up times: the time of an iteration by settings and size."""

    def __init__(self, times: dict[tuple[str, int], float]) -> None:
        self.times = times
        self.tasks: list[tuple[str, Task]] = []

    def __call__(self, lab: Lab, task: Task, transport: Any) -> list[dict[str, Any]]:
        self.tasks.append((transport.label(), task))
        if (transport.label(), -1) in self.times:
            raise RunError("the ranks failed")
        assert isinstance(task.sizes, SizeList)
        return [
            make_record(
                transport=transport.name, op=task.op, size=size, pair=task.pair, wrong=0,
                time_us=self.times[transport.label(), size], cpu_s_per_gb=0.5, p50_us=9.0,
                algbw_gbs=size / self.times[transport.label(), size] / 1e3,
            )
            for size, _, _ in task.sizes.sizes
        ]  # fmt: skip


class NoLab:
    def __init__(self, hosts: int, wire: str) -> None:
        self.hosts: list[Any] = [None] * hosts

    def __enter__(self) -> NoLab:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def run_bench(monkeypatch: pytest.MonkeyPatch, runs: Runs, pattern: str) -> bench_run.Bench:
    monkeypatch.setattr(bench_run, "run_perf", runs)
    monkeypatch.setattr(bench_run, "Lab", NoLab)
    monkeypatch.setattr(bench_run, "has_xdp", lambda: True)
    made = bench_run.Bench(QUICK.limited([pattern], 2), lambda text: None)
    made.run()
    return made


def test_each_size_uses_its_best_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = [KernelTcp(nsocks=count).label() for count in (1, 2, 4)]
    harp = [HarpPacket(flows=count).label() for count in (1, 2, 4)]
    xdp = [HarpXdp(flows=count).label() for count in (1, 2, 4)]
    assert all("harp-xdp in copy mode" in label for label in xdp)
    times = {(label, size): 100.0 for label in kernel + harp + xdp for size in (64 * KIB, MIB)}
    times[kernel[0], 64 * KIB] = times[kernel[1], MIB] = times[harp[2], MIB] = 50.0
    times[xdp[1], MIB] = 50.0
    runs = Runs(times)
    made = run_bench(monkeypatch, runs, "veth-1500-nooff sendrecv")
    small, large = made.cells
    assert small.settings[KERNEL] == kernel[0] and large.settings[KERNEL] == kernel[1]
    assert large.settings[HARP] == harp[2] and large.settings[XDP] == xdp[1]
    assert all(cell.ratio(ours, KERNEL) for cell in (small, large) for ours in (HARP, XDP))
    pairs = [(task.pair, label, task.sizes) for label, task in runs.tasks if task.pair is not None]
    assert (0, kernel[1], SizeList(((MIB, 8000, 800),))) in pairs
    firsts = [[label for pair, label, _ in pairs if pair == number][0] for number in (0, 1)]
    assert firsts[0] in kernel and firsts[1] in xdp  # the sides begin in turns


@pytest.mark.parametrize(("seconds", "flows"), [(0.97, 1), (0.9, 2)])
def test_default_stays_unless_other_settings_are_clearly_faster(seconds: float, flows: int) -> None:
    times: dict[Transport, float] = {HarpPacket(flows=1): 1.0, HarpPacket(flows=2): seconds}
    chosen = HarpPacket(flows=flows)
    assert bench_run.choice_of(times) == (chosen, times[chosen])


def test_failed_settings_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {(KernelTcp().label(), 8): 10.0, (HarpPacket(flows=1).label(), -1): 0.0}
    times |= {(KernelTcp().label(), size): 10.0 for size in (4 * KIB, 64 * KIB)}
    made = run_bench(monkeypatch, Runs(times), "veth-1500 pingpong ?k")
    assert made.failures == ["the ranks failed"]
    assert made.cells[0].records.keys() == {KERNEL}


def test_fixed_rate_holds_rate_and_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {(one.label(), MIB): 800.0 for one in (KernelTcp(), HarpPacket(flows=1))}
    runs = Runs(times)
    run_bench(monkeypatch, runs, "veth-9000 10-gbit")
    assert {(task.rate_gbit, task.rest) for _, task in runs.tasks} == {(10.0, True)}
    assert "--rest" in runs.tasks[0][1].arguments()


def test_busy_rows_have_no_cpu_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[bool] = []

    class NoLoops:
        def __init__(self, host: object) -> None:
            loops.append(True)

        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: object) -> None:
            pass

    monkeypatch.setattr(bench_run, "compute_loops", NoLoops)
    counts = (1, 2, 4)
    sides = [KernelTcp(nsocks=n) for n in counts] + [HarpPacket(flows=n) for n in counts]
    runs = Runs({(side.label(), MIB): 100.0 for side in sides})
    made = run_bench(monkeypatch, runs, "veth-1500 sendrecv 1m busy")
    assert len(loops) == len(runs.tasks) > 0
    assert [record["cpu_s_per_gb"] for record in made.records] == [None] * 4
    assert all(record["busy"] for record in made.records)


def running(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_compute_loops_occupy_each_core_and_end() -> None:
    with Lab() as lab:
        with compute_loops(lab.hosts[0]):
            loops = [process.pid for process in lab.hosts[0].processes]
            assert {frozenset(os.sched_getaffinity(pid)) for pid in loops} == {
                frozenset({core}) for core in os.sched_getaffinity(0)
            }
        assert not running(loops)


def test_compute_loops_end_with_killed_tool() -> None:
    program = (
        "import time\nfrom tools.hosts.lab import Lab\n"
        "from tools.measure.load import compute_loops\n"
        "with Lab() as lab, compute_loops(lab.hosts[0]):\n"
        "    print(*(p.pid for p in lab.hosts[0].processes), flush=True)\n    time.sleep(60)\n"
    )
    args = [sys.executable, "-c", program]
    with subprocess.Popen(args, stdout=subprocess.PIPE, text=True) as tool:
        assert tool.stdout
        loops = [int(word) for word in tool.stdout.readline().split()]
        assert loops and running(loops) == loops
        tool.send_signal(signal.SIGKILL)
    limit = time.monotonic() + 10
    while running(loops) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not running(loops)


# -- the command


def invoke(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(bench.main, args)
    return done.exit_code, done.output


def test_list_prints_rows_and_duration() -> None:
    status, said = invoke("--quick", "--list", "--only", "vhost-tso", "--only", "4-hosts 8?")
    assert status == 0
    assert said.splitlines()[:4] == [
        "veth-1500 all_reduce 8B 4-hosts",
        "veth-1500 all_reduce 8M 4-hosts",
        "vhost-tso sendrecv 64K",
        "vhost-tso sendrecv 1M",
    ]
    assert re.search(r"^about \d minutes?$", said, re.MULTILINE)


@pytest.mark.parametrize(
    "args", [("--only", "veth-1500 sendrecv 65K"), ("--pairs", "0"), ("--baseline", "/nowhere")]
)
def test_wrong_usage_exits_2(args: tuple[str, ...]) -> None:
    assert invoke(*args)[0] == 2


@pytest.mark.slow
def test_baseline_is_measured_as_kernel_side(tmp_path: Path) -> None:
    """The reference plugin, named by its path, stands for NCCL's socket transport."""
    plugin, file = paths.kernel_plugin_path(), tmp_path / "out.json"
    status, said = invoke(
        *("--quick", "--only", "veth-1500 pingpong 8b", "--only", "veth-1500 10-gbit"),
        *("--pairs", "1", "--baseline", str(plugin), "--json", str(file)),
    )
    assert status == 0, said
    assert f"kernel-tcp by {plugin.name}, cubic" in said
    document = json.loads(file.read_text())
    assert document["schema"] == "harp.perf/1" and document["baseline"] == str(plugin)
    kernel = [one for one in document["records"] if one["transport"] == "kernel-tcp"]
    assert kernel and all(one["plugin"] == str(plugin) for one in kernel)
    assert {one["row"] for one in document["records"]} == {
        "veth-1500 pingpong 8B",
        "veth-1500 pingpong 8B busy",
        "veth-1500 sendrecv 1M 10-gbit",
    }
    (cost,) = [one for one in document["targets"] if one["figure"] == "cpu_s_per_gb"]
    assert cost["row"] == "veth-1500 sendrecv 1M 10-gbit" and cost["pairs"] <= 1
    assert (cost["bound"], cost["aim"], cost["at_least"]) == (1.0, 0.8, False)


def test_other_plugin_gets_socket_settings(tmp_path: Path) -> None:
    host = Lab().hosts[0]
    plugin = OtherPlugin(Path("/x/libnccl-net-socket.so"), 2, 1)
    assert plugin.environment(host, tmp_path) == {
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_NTHREADS": "2",
        "NCCL_NSOCKS_PERTHREAD": "1",
    }
    assert "NCCL_SOCKET_NTHREADS" not in OtherPlugin(plugin.path).environment(host, tmp_path)


# -- instructions


def test_instruction_targets_become_verdicts() -> None:
    names = {"transmit": (200, 0), "receive": (221, 0), "send the acknowledgement": (28, 500)}
    names |= {"take the acknowledgement": (22, 401), BOTH: (48, 901)}
    rows = [instructions.Row(name, (Cost(*cost), Cost(*cost)), 0) for name, cost in names.items()]
    assert [str(one) for one in instructions.verdicts(rows)] == [
        "met     transmit, for a segment ≤ 200 instructions: 200",
        "missed  receive, for a segment ≤ 220 (150) instructions: 221",
        f"met     {BOTH}, for a segment ≤ 48 (40) instructions: 48",
        "met     send the acknowledgement, for an ACK ≤ 500 instructions: 500",
        "missed  take the acknowledgement, for an ACK ≤ 400 instructions: 401",
    ]
    assert FEW < MANY


def test_growth_with_flows_becomes_verdicts() -> None:
    few = Cost(100, 0)
    rows = [instructions.Row("x", (few, Cost(many, 0)), 0) for many in (105, 112)]
    assert [str(one) for one in instructions.flow_verdicts(rows, 1.25)] == [
        "missed  1 to 10,000 flows, instructions ≤ 1.1×: 1.12×",
        "met     1 to 1,000 flows, time for a byte ≤ 1.3×: 1.25×",
    ]


# -- copies


def test_slow_distances_are_named() -> None:
    usual = {distance: 20.0 for distance in copies.DISTANCES}
    slow = copies.Copies("movsb", {**usual, 28: 2.0})
    assert slow.slowdown == pytest.approx(0.1)
    assert "`rep movsb` reaches 0.10 of its usual rate" in copies.remark([slow])
    assert "No way to copy is slow" in copies.remark([copies.Copies("memcpy", usual)])


def test_copies_are_measured_at_each_distance(tmp_path: Path) -> None:
    found = copies.measure(milliseconds=1)
    assert {one.way for one in found} >= {"memcpy", "kernel-in", "kernel-out"}
    for one in found:
        assert set(one.rates) == set(copies.DISTANCES) and min(one.rates.values()) > 0
    copies.save(found, tmp_path / "out.json")
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["schema"] == "harp.copies/1" and len(document["copies"]) == len(found)
    assert copies.table(found).count("\n") == len(found) + 1
