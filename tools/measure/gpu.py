# SPDX-License-Identifier: Apache-2.0
"""The command tools/gpu: real NCCL over HARP, on a machine with a GPU.

Two ranks share the GPU; NCCL treats them as two hosts. PyTorch, and NCCL alone, sum their tensors
through HARP and through NCCL's own sockets, alternately on the same wire. Every element is checked.
PyTorch then trains a model, with plain gradients and with those of harp.light. One
report has the figures, the versions, and the log lines that name the network that NCCL used. All
logs are kept.

It needs a built wheel of HARP and a Python with PyTorch. This module and its imports use only the
standard library, not click.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Optional

from tools.hosts.ports import random_port
from tools.measure.gpu_mps import mps
from tools.measure.gpu_nets import NAMES, Net, NetError, join
from tools.measure.records import describe_host, unwritable
from tools.measure.tables import markdown, size_text

ROOT = Path(__file__).resolve().parents[2]
RANK_PROGRAM = Path(__file__).with_name("gpu_rank.py")
SCHEMA = "harp.gpu/1"
IN_WHEEL = "harp/libnccl-net-harp.so"
SIZES = (4, 1000, 65540, 1 << 20, 16 << 20, 64 << 20)  # bytes
RATES_FROM = 1 << 20  # bytes: the table has times of shorter messages
ITERATIONS = 20
RUN_LIMIT_S = 180  # of one job
MIXED_LIMIT_S = 60
AFTERMATH_S = 20  # for the second rank, after the first has failed
TAIL = 40  # lines shown of a failed rank's log

# Two ranks on one GPU with only the network between them.
COMMON = {
    "CUDA_VISIBLE_DEVICES": "0",
    "NCCL_CONF_FILE": "/dev/null",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_CUMEM_HOST_ENABLE": "0",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MAX_NCHANNELS": "2",
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_RAS_ENABLE": "0",
    "NCCL_SHM_DISABLE": "1",
    "PYTHONUNBUFFERED": "1",
}

# The lines of NCCL's log that belong in the report.
TELLING = re.compile(r"HARP|NCCL version|NET/Plugin|Using network|via NET/|NCCL WARN|NET/Socket")


class Unfit(RuntimeError):
    """This machine cannot run the command. The message says why, and what to do."""


# -- requirements


def find_gpus() -> list[str]:
    """The names of the GPUs, from the driver's library. Raises Unfit if there is none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise Unfit("no GPU: the driver's library libcuda.so.1 cannot be loaded") from None
    count, names = ctypes.c_int(0), []
    result = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    if result or count.value == 0:
        raise Unfit(f"no GPU: the driver counts {count.value} (CUDA error {result})")
    for number in range(count.value):
        name = ctypes.create_string_buffer(128)
        cuda.cuDeviceGetName(name, 128, number)
        names.append(name.value.decode())
    return names


def find_torch(python: str) -> str:
    """PyTorch's version. Raises Unfit if that Python has no PyTorch that can use the GPU."""
    code = "import torch; print(torch.__version__ if torch.cuda.is_available() else '')"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unfit(f"{python} cannot be run: {error}") from None
    lines = done.stdout.split()
    if done.returncode or not lines:
        said = done.stderr.strip().splitlines()
        why = said[-1] if said else "its PyTorch finds no GPU"
        raise Unfit(f"{python}: {why}; name a Python with PyTorch by --python")
    return lines[-1]


def newest_wheel() -> Path:
    """The newest wheel of this checkout. Raises Unfit if there is none."""
    found = [*ROOT.glob("*.whl"), *ROOT.glob("dist/*.whl")]
    ours = [path for path in found if path.name.startswith("harp_nccl-")]
    if not ours:
        raise Unfit(f"no harp_nccl-*.whl in {ROOT} or its dist: give one with --wheel, or make one "
                    "with `pip wheel . -w dist`")  # fmt: skip
    return max(ours, key=lambda path: path.stat().st_mtime)


def unpack(wheel: Path, folder: Path) -> Path:
    """Unpacks the wheel, and its plugin under the name that NCCL looks for. Raises Unfit if the
    wheel has none."""
    folder.mkdir(parents=True, exist_ok=True)
    plugin = folder / "libnccl-net.so"
    try:
        with zipfile.ZipFile(wheel) as archive:
            plugin.write_bytes(archive.read(IN_WHEEL))
            archive.extractall(folder)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise Unfit(f"{wheel}: {error}; is it a wheel of harp-nccl?") from None
    return plugin


# -- jobs


@dataclass(frozen=True)
class Kind:
    """A kind of job: variables for both ranks, and more for the second one."""

    name: str
    both: dict[str, str]
    second: dict[str, str] = field(default_factory=dict)
    limit_s: float = RUN_LIMIT_S


def _first(folder: Path, variable: str) -> str:
    """The variable's list of folders, with this one before the inherited ones."""
    return ":".join([str(folder), *filter(None, [os.environ.get(variable)])])


def kinds(plugin: Path, gpu: dict[str, str]) -> tuple[Kind, Kind, Kind]:
    """HARP, NCCL's sockets, and a job with HARP disabled on the second host. `gpu` has further
    variables."""
    # The ranks import the wheel's package, which is beside the plugin, before the checkout's.
    both = {**gpu, "PYTHONPATH": _first(plugin.parent, "PYTHONPATH")}
    harp = {**both, "LD_LIBRARY_PATH": _first(plugin.parent, "LD_LIBRARY_PATH")}
    return (
        Kind("HARP", {**harp, "NCCL_NET": "HARP"}),
        Kind("Socket", {**both, "NCCL_NET": "Socket"}),
        Kind("mixed", harp, {"HARP_DISABLE": "1"}, MIXED_LIMIT_S),
    )


@dataclass
class Job:
    """The result of a job. found: the ranks' documents; lines: their NCCL log lines."""

    kind: str
    number: int
    statuses: list[Optional[int]]  # None: the rank hung and was killed
    seconds: float
    logs: list[str]
    found: list[list[dict[str, Any]]]
    lines: list[list[str]]

    @property
    def whole(self) -> bool:
        ends = [any(one["kind"] == "done" for one in found) for found in self.found]
        return self.statuses == [0, 0] and all(ends)

    def documents(self, kind: str) -> list[dict[str, Any]]:
        return [one for found in self.found for one in found if one["kind"] == kind]

    def says(self, rank: int, mark: str) -> bool:
        return any(re.search(mark, line) for line in self.lines[rank])


def read_log(text: str) -> tuple[list[dict[str, Any]], list[str]]:
    """A rank's documents, and its lines for the report, each once."""
    documents = [json.loads(line[4:]) for line in text.splitlines() if line.startswith("GPU {")]
    lines = [line for line in text.splitlines() if TELLING.search(line) and line[:5] != "GPU {"]
    return documents, list(dict.fromkeys(lines))


def _environment(net: Net, kind: Kind, rank: int) -> dict[str, str]:
    drop = ("NCCL_", "HARP_", "TORCH_NCCL_")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    return {
        **inherited,
        **COMMON,
        **net.places[rank].environment(),
        "NCCL_HOSTID": f"harp-gpu-{rank}",
        **kind.both,
        **(kind.second if rank else {}),
    }


@contextlib.contextmanager
def _ranks(
    net: Net, kind: Kind, program: Sequence[str], task: dict[str, Any], logs: list[Path]
) -> Iterator["list[subprocess.Popen[bytes]]"]:
    """Starts both ranks, each in its own process group. The end of the block kills them."""
    started: "list[subprocess.Popen[bytes]]" = []
    try:
        for rank, log in enumerate(logs):
            args = [*net.places[rank].prefix, *program, json.dumps({**task, "rank": rank})]
            with open(log, "wb") as output:
                started.append(
                    subprocess.Popen(
                        args, env=_environment(net, kind, rank), stdin=subprocess.DEVNULL,
                        stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                    )
                )  # fmt: skip
        yield started
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(processes: "list[subprocess.Popen[bytes]]", limit_s: float) -> list[Optional[int]]:
    """Waits for the end and returns the exit statuses. The peer gets AFTERMATH_S more after a
    failure."""
    limit = time.monotonic() + limit_s
    failed = False
    while any(process.poll() is None for process in processes) and time.monotonic() < limit:
        if not failed and any(process.poll() for process in processes):
            failed = True
            limit = min(limit, time.monotonic() + AFTERMATH_S)
        time.sleep(0.05)
    return [process.poll() for process in processes]


def run_job(net: Net, kind: Kind, number: int, program: Sequence[str], folder: Path) -> Job:
    """Runs one job. Its logs stay in the folder."""
    logs = [folder / f"{number:02}-{kind.name}-rank{rank}.log" for rank in range(2)]
    task = {
        "ranks": 2,
        "host": net.host,
        "port": random_port(),
        "sizes": SIZES,
        "iterations": ITERATIONS,
        "limit_s": kind.limit_s,
    }
    began = time.monotonic()
    with _ranks(net, kind, program, task, logs) as processes:
        statuses = _wait(processes, kind.limit_s)
    texts = [log.read_text(errors="replace") for log in logs]
    read = [read_log(text) for text in texts]
    return Job(
        kind=kind.name,
        number=number,
        statuses=statuses,
        seconds=time.monotonic() - began,
        logs=[str(log) for log in logs],
        found=[documents for documents, _ in read],
        lines=[lines for _, lines in read],
    )


# -- the report


@dataclass(frozen=True)
class Check:
    """One check; `text` has the observation."""

    ok: bool
    name: str
    text: str


def _check_job(job: Job) -> list[Check]:
    ended = f"exit {job.statuses} (None: hung) after {job.seconds:.0f} s; {', '.join(job.logs)}"
    checks = [Check(job.whole, f"{job.kind}, job {job.number}: both ranks end well", ended)]
    seen = job.documents("checked")
    bad = sum(one["wrong"] for one in seen)
    checks.append(
        Check(
            bool(seen) and bad == 0,
            f"{job.kind}, job {job.number}: every element is right",
            f"{bad} wrong in {len(seen)} checks",
        )
    )
    trained = job.documents("trained")
    same = bool(trained) and all(one["same"] for one in trained)
    name = f"{job.kind}, job {job.number}: the ranks' models are equal"
    checks.append(Check(same, name, f"{len(trained)} trainings on both ranks"))
    used = [job.says(rank, rf"Using network {job.kind}\b") for rank in range(2)]
    via = [job.says(rank, rf"via NET/{job.kind}/") for rank in range(2)]
    name = f"{job.kind}, job {job.number}: NCCL's log names {job.kind}"
    checks.append(Check(all(used) and all(via), name, f"Using network: {used}; via: {via}"))
    return checks


def _check_mixed(job: Job) -> list[Check]:
    """Checks that both ranks end in time with an error, and that HARP's side logs the reason."""
    ends = all(status not in (None, 0) for status in job.statuses)
    says = job.says(0, "uses a socket transport, not HARP")
    off = job.says(1, "HARP_DISABLE=1 in the environment")
    seen = f"exit {job.statuses} after {job.seconds:.0f} s; {', '.join(job.logs)}"
    return [
        Check(ends, "HARP off on one host: both ranks end with an error, none hangs", seen),
        Check(says and off, "HARP off on one host: both sides log it",
              f"the one with HARP: {says}, the one without: {off}"),
    ]  # fmt: skip


def check_all(jobs: Sequence[Job]) -> list[Check]:
    checks = [
        check
        for job in jobs
        for check in (_check_mixed(job) if job.kind == "mixed" else _check_job(job))
    ]
    if not any(job.kind == "HARP" for job in jobs):
        checks.append(Check(False, "HARP: a job ran", "no job ran"))
    return checks


def _medians(
    jobs: Sequence[Job], kind: str, keys: Sequence[str], value: str
) -> list[dict[str, Any]]:
    """Both networks' medians of a value of rank 0's documents over the jobs, a row for each
    combination of the keys."""
    found: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for job in jobs:
        for one in job.found[0]:
            if one["kind"] == kind:
                values = found.setdefault(tuple(one[key] for key in keys), {})
                values.setdefault(job.kind, []).append(one[value])
    rows = []
    for names, kinds_of in found.items():
        middle = {net: median(values) for net, values in kinds_of.items()}
        both = "HARP" in middle and middle.get("Socket")
        ratio = middle["HARP"] / middle["Socket"] if both else None
        rows.append({**dict(zip(keys, names)), value: middle, "ratio": ratio})
    return rows


def timing(jobs: Sequence[Job], value: str) -> list[dict[str, Any]]:
    """busbw_gbs (bus bandwidth) or time_us of all-reduces, by caller of NCCL and size."""
    return _medians(jobs, "timed", ("by", "size"), value)


def training(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Images per second of all ranks, by reduction of the gradients."""
    return _medians(jobs, "trained", ("reduction",), "images_per_s")


def table(jobs: Sequence[Job]) -> str:
    def cells(row: dict[str, Any], value: str, digits: int) -> list[str]:
        speeds = [row[value].get(kind) for kind in ("HARP", "Socket")]
        shown = ["–" if one is None else f"{one:.{digits}f}" for one in speeds]
        return [*shown, "–" if row["ratio"] is None else f"{row['ratio']:.2f}"]

    lines = [
        [f"all_reduce by {row['by']}, {size_text(row['size'])}, µs", *cells(row, "time_us", 1)]
        for row in timing(jobs, "time_us")
        if row["size"] < RATES_FROM
    ]
    lines += [
        [f"all_reduce by {row['by']}, {size_text(row['size'])}, GB/s", *cells(row, "busbw_gbs", 3)]
        for row in timing(jobs, "busbw_gbs")
        if row["size"] >= RATES_FROM
    ]
    lines += [
        [f"VGG16, {row['reduction']}, images/s", *cells(row, "images_per_s", 1)]
        for row in training(jobs)
    ]
    return markdown(("", "HARP", "Socket", "HARP over Socket"), lines, (1, 2, 3))


@dataclass
class Report:
    """All results."""

    about: dict[str, Any]
    jobs: list[Job] = field(default_factory=list)

    def checks(self) -> list[Check]:
        return check_all(self.jobs)

    def document(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "host": describe_host(),
            **self.about,
            "checks": [asdict(check) for check in self.checks()],
            "bandwidth": timing(self.jobs, "busbw_gbs"),
            "times": timing(self.jobs, "time_us"),
            "training": training(self.jobs),
            "jobs": [asdict(job) for job in self.jobs],
        }

    def text(self) -> str:
        versions = [one for job in self.jobs for one in job.documents("versions")]
        lines = [f"{key}: {value}" for key, value in self.about.items()]
        lines += [f"{key}: {value}" for key, value in (versions[0] if versions else {}).items()
                  if key != "kind"]  # fmt: skip
        lines += [
            "",
            table(self.jobs),
            "Medians over alternating jobs. GB/s are bus bandwidth.",
            "",
        ]
        first = {job.kind: job for job in reversed(self.jobs)}
        for job in reversed(first.values()):
            for rank, said in enumerate(job.lines):
                lines += [f"-- {job.kind}, rank {rank}", *said]
        lines.append("")
        lines += [f"{'ok  ' if c.ok else 'FAIL'} {c.name}: {c.text}" for c in self.checks()]
        return "\n".join(lines) + "\n"


def _show_failure(job: Job) -> None:
    """Prints the ends of the job's logs."""
    for log in job.logs:
        lines = Path(log).read_text(errors="replace").splitlines()
        print(f"-- the end of {log}", *lines[-TAIL:], sep="\n", file=sys.stderr)


def run_all(
    net: Net,
    plugin: Path,
    gpu: dict[str, str],
    program: Sequence[str],
    pairs: int,
    folder: Path,
) -> Iterator[Job]:
    """Runs all jobs one after the other. The first of a pair alternates. `gpu` has variables for
    all ranks."""
    harp, sockets, mixed = kinds(plugin, gpu)
    order = [k for p in range(pairs) for k in ((harp, sockets) if p % 2 == 0 else (sockets, harp))]
    for number, kind in enumerate([*order, mixed]):
        job = run_job(net, kind, number, program, folder)
        print(f"[{job.seconds:4.0f} s] {job.kind}: exit {job.statuses}", file=sys.stderr)
        if not job.whole and job.kind != "mixed":
            _show_failure(job)
        yield job


def _options(args: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/gpu",
        description="Run real NCCL over HARP with two ranks on one GPU: check the sums, and "
        "compare the bandwidth with NCCL's own sockets.",
        epilog="Exit: 0 if every check holds, 1 if one does not, 2 on wrong usage or without a "
        "GPU, PyTorch or a wheel.",
    )
    parser.add_argument("--wheel", type=Path, help="harp_nccl-*.whl (the checkout's newest one)")
    parser.add_argument("--plugin", type=Path, help="a libnccl-net.so instead of a wheel's")
    parser.add_argument("--python", default=sys.executable, help="a Python with PyTorch (this one)")
    parser.add_argument("--net", choices=NAMES, action="append",
                        help="network between the ranks (the first possible one)")  # fmt: skip
    parser.add_argument("--pairs", type=int, default=3, help="number of jobs on each network (3)")
    parser.add_argument("--logs", type=Path, help="folder for all logs (a new one in /tmp)")
    parser.add_argument("--json", type=Path, help="write the report to this file, too")
    options = parser.parse_args(args)
    if options.pairs < 1:
        parser.error("--pairs: at least 1")
    problem = options.json and unwritable(options.json)
    if problem:
        parser.error(f"--json {problem}")
    return options


def _plugin(options: argparse.Namespace, folder: Path) -> tuple[Path, str]:
    """The plugin under the name that NCCL looks for, and its source."""
    if not options.plugin:
        wheel = options.wheel or newest_wheel()
        return unpack(wheel, folder), str(wheel)
    if not options.plugin.is_file():
        raise Unfit(f"--plugin {options.plugin}: there is no such file")
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / "libnccl-net.so"
    copy.write_bytes(options.plugin.read_bytes())
    return copy, str(options.plugin)


def main(args: Optional[Sequence[str]] = None) -> int:
    """Runs the command. Returns the exit status."""
    options = _options(args)
    try:
        gpus = find_gpus()
        torch = find_torch(options.python)
        folder = options.logs or Path(tempfile.mkdtemp(prefix="harp-gpu-"))
        plugin, source = _plugin(options, folder / "plugin")
        refusals: list[str] = []
        with join(options.net or NAMES, folder, refusals) as net, mps(folder) as gpu:
            about = {"gpus": gpus, "mps": bool(gpu), "torch": torch, "plugin": source,
                     "net": net.name, "refused": refusals, "logs": str(folder)}  # fmt: skip
            report = Report(about)
            program = [options.python, str(RANK_PROGRAM)]
            report.jobs += run_all(net, plugin, gpu, program, options.pairs, folder)
    except (Unfit, NetError) as error:
        print(f"gpu: {error}", file=sys.stderr)
        return 2
    (folder / "report.txt").write_text(report.text())
    (options.json or folder / "report.json").write_text(json.dumps(report.document(), indent=1))
    print(report.text())
    return 0 if all(check.ok for check in report.checks()) else 1


if __name__ == "__main__":
    sys.exit(main())
