# SPDX-License-Identifier: Apache-2.0
"""tools/gpu without a GPU: it reports that, and all parts but PyTorch and NCCL are tested.

A program with the same output and harp-perf replace PyTorch and NCCL.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import textwrap
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Optional

import pytest

from harp import paths
from tools.hosts.lab import Lab
from tools.measure.gpu import (
    IN_WHEEL,
    Job,
    Report,
    Unfit,
    check_all,
    kinds,
    read_log,
    run_all,
    run_job,
    timing,
    unpack,
)
from tools.measure.gpu_mps import PROGRAM, mps
from tools.measure.gpu_nets import Net, NetError, join

ROOT = Path(__file__).resolve().parents[2]


def has_gpu() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(has_gpu(), reason="there is a driver for GPUs here")
def test_missing_gpu_is_reported() -> None:
    done = subprocess.run([ROOT / "tools/gpu"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == ("gpu: no GPU: the driver's library libcuda.so.1 cannot be loaded\n")


def test_gpu_tool_needs_only_standard_library() -> None:
    args = [sys.executable, "-S", "-m", "tools.measure.gpu"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*args, "--help"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "Run real NCCL over HARP" in done.stdout, done.stderr
    wrong = subprocess.run([*args, "--pairs", "0"], capture_output=True, env=environment)
    assert wrong.returncode == 2


# -- the wheel


def test_plugin_is_unpacked_from_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "harp_nccl-0-cp39-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(IN_WHEEL, b"\x7fELF and so on")
        archive.writestr("harp/torch/__init__.py", "")
    plugin = unpack(wheel, tmp_path / "plugin")
    assert plugin.name == "libnccl-net.so" and plugin.read_bytes().startswith(b"\x7fELF")
    assert (tmp_path / "plugin/harp/torch/__init__.py").is_file()


@pytest.mark.parametrize("kind", ["missing", "no zip", "another's"])
def test_invalid_wheel_is_refused(kind: str, tmp_path: Path) -> None:
    wheel = tmp_path / "some.whl"
    if kind == "no zip":
        wheel.write_text("wheel")
    elif kind == "another's":
        zipfile.ZipFile(wheel, "w").close()
    with pytest.raises(Unfit, match=r"some\.whl: .*is it a wheel of harp-nccl\?"):
        unpack(wheel, tmp_path / "plugin")


# -- MPS

CONTROL = """#!/bin/sh
cd "$CUDA_MPS_PIPE_DIRECTORY" || exit 1
if [ "$1" = -f ]; then
  echo $$ >up
  while [ -e up ]; do sleep 0.05; done
  exit 0
fi
read -r command
case $command in
  get_server_list) [ -e up ] ;;
  quit*) rm up ;;
esac
"""


def test_mps_runs_for_the_jobs_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / PROGRAM
    program.write_text(CONTROL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with mps(tmp_path) as variables:
        (pipes,) = map(Path, variables.values())
        pid = (pipes / "up").read_text().strip()
        assert list(variables) == ["CUDA_MPS_PIPE_DIRECTORY"] and Path("/proc", pid).exists()
    assert not pipes.exists() and not Path("/proc", pid).exists()


@pytest.mark.parametrize("text", [None, "#!/bin/sh\nexit 1\n"])
def test_jobs_run_without_mps(
    text: Optional[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / PROGRAM).write_text(text)
        (tmp_path / PROGRAM).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with mps(tmp_path) as variables:
        assert variables == {}


# -- jobs of a program that replaces PyTorch

FAKE = """
import json, os, sys
task, fault = json.loads(sys.argv[2]), sys.argv[1]
rank, net = task["rank"], os.environ.get("NCCL_NET", "mixed")
assert os.environ["NCCL_HOSTID"] == f"harp-gpu-{rank}" and os.environ["NCCL_P2P_DISABLE"] == "1"
assert "NCCL_ALGO" not in os.environ, "another run's setting"
assert os.environ["PYTHONPATH"].split(":")[0].endswith("plugin"), "not the wheel's package"

def nccl(text):
    print(f"gpu1:4{rank}:5{rank} [0] NCCL {text}", flush=True)

def say(kind, **found):
    print("GPU " + json.dumps({"kind": kind, **found}), flush=True)

if net == "mixed":
    if rank == 0:
        nccl("WARN HARP: connect: the peer at 10.77.0.2 port 4 uses a socket transport, not HARP")
    else:
        nccl("INFO HARP: HARP_DISABLE=1 in the environment: HARP declines")
    if fault == "mixed hangs" and rank:
        import time
        time.sleep(100)
    sys.exit(1)
if net == "HARP":
    assert os.environ["LD_LIBRARY_PATH"].split(":")[0].endswith("plugin")
    nccl("INFO NET/Plugin: Loaded net plugin HARP (v12)")
if fault == "crash" and net == "HARP" and rank:
    print("Traceback: out of luck", flush=True)
    os.abort()
nccl(f"INFO Using network {'Socket' if fault == 'fallback' else net}")
nccl("INFO something else that nobody wants to read")
nccl(f"INFO Channel 00/0 : {1 - rank}[0] -> {rank}[0] [receive] via NET/{net}/0")
say("versions", torch="2.9.1", cuda="12.8", nccl="2.27.5", gpu="NVIDIA H200")
for by in ("torch", "nccl"):
    for size in task["sizes"]:
        bad = int(fault == "wrong" and net == "HARP" and rank == 1 and size == 1000)
        say("checked", by=by, size=size, dtype="float32", wrong=bad)
        say("timed", by=by, size=size, time_us=3 if net == "HARP" else 2,
            algbw_gbs=1, busbw_gbs=2 if net == "HARP" else 1)
for reduction in ("plain", "top-k"):
    same = not (fault == "models differ" and net == "HARP" and reduction == "top-k")
    say("trained", reduction=reduction, images_per_s=30 if net == "HARP" else 20, same=same)
say("done")
"""


def report_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str = "") -> Report:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setattr("tools.measure.gpu.MIXED_LIMIT_S", 3)
    monkeypatch.setattr("tools.measure.gpu.AFTERMATH_S", 1)
    program = tmp_path / "fake.py"
    program.write_text(textwrap.dedent(FAKE))
    plugin = tmp_path / "plugin" / "libnccl-net.so"
    report = Report({"net": "wire"})
    with join(["wire"], tmp_path, []) as net:
        args = [sys.executable, str(program), fault]
        report.jobs += run_all(net, plugin, {}, args, 2, tmp_path)
    return report


def failures(report: Report) -> list[str]:
    return [check.name for check in report.checks() if not check.ok]


def test_report_lists_jobs_and_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_of(tmp_path, monkeypatch)
    assert [job.kind for job in report.jobs] == ["HARP", "Socket", "Socket", "HARP", "mixed"]
    assert failures(report) == [] and len(report.checks()) == 4 * 4 + 2
    rows = timing(report.jobs, "busbw_gbs")
    assert len(rows) == 2 * 6
    assert rows[0]["by"] == "torch" and rows[0]["size"] == 4
    assert rows[0]["busbw_gbs"] == {"HARP": 2.0, "Socket": 1.0} and rows[0]["ratio"] == 2.0
    text = report.text()
    for said in ("torch: 2.9.1", "gpu: NVIDIA H200", "Loaded net plugin HARP (v12)",
                 "via NET/HARP/0"):  # fmt: skip
        assert said in text, text
    assert re.search(
        r"\| all_reduce by torch, 64 MiB, GB/s +\| +2\.000 \| +1\.000 \| +2\.00 \|", text
    ), text
    assert re.search(r"\| all_reduce by nccl, 4 B, µs +\| +3\.0 \| +2\.0 \| +1\.50 \|", text), text
    assert re.search(r"\| VGG16, top-k, images/s +\| +30\.0 \| +20\.0 \| +1\.50 \|", text), text
    assert text.count("Loaded net plugin") == 2, "the report needs one job of each kind"
    assert "nobody wants" not in text
    document = json.loads(json.dumps(report.document()))
    assert document["schema"] == "harp.gpu/1" and all(one["ok"] for one in document["checks"])
    assert all(Path(log).is_file() for job in document["jobs"] for log in job["logs"])


@pytest.mark.parametrize(
    "fault,named",
    [
        ("wrong", "HARP, job 0: every element is right"),
        ("fallback", "HARP, job 0: NCCL's log names HARP"),
        ("models differ", "HARP, job 0: the ranks' models are equal"),
        ("crash", "HARP, job 0: both ranks end well"),
        ("mixed hangs", "HARP off on one host: both ranks end with an error, none hangs"),
    ],
)
def test_failed_job_is_named(
    fault: str,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    report = report_of(tmp_path, monkeypatch, fault)
    assert named in failures(report)
    shown = capfd.readouterr().err
    assert ("Traceback: out of luck" in shown) == (fault == "crash"), "the log of the failed rank"
    if fault == "mixed hangs":
        assert report.jobs[-1].statuses == [1, None]


def test_no_job_fails_check() -> None:
    assert [check.ok for check in check_all([])] == [False]


def test_repeated_log_lines_are_kept_once() -> None:
    line = "gpu1:40:50 [0] NCCL INFO Using network HARP"
    documents, lines = read_log(f'{line}\n{line}\nGPU {{"kind": "done"}}\nHi\n')
    assert documents == [{"kind": "done"}] and lines == [line]


# -- the nets, with the plugin itself, driven by harp-perf

PERF = """
import json, os, sys
task = json.loads(sys.argv[3])
where = ["--rank", str(task["rank"]), "--nranks", "2",
         "--rendezvous", f"{task['host']}:{task['port']}"]
args = ["all_reduce", "-b", "1K", "-e", "1M", "-f", "1024", "-n", "3", "--plugin", sys.argv[2]]
os.execv(sys.argv[1], [sys.argv[1], *args, *where])
"""


def perf_job(net: Net, folder: Path) -> Job:
    program = folder / "perf.py"
    program.write_text(textwrap.dedent(PERF))
    harp, *_ = kinds(paths.nccl_plugin_path(), {})
    args = [sys.executable, str(program), str(paths.perf_program())]
    return run_job(net, replace(harp, limit_s=60), 0, [*args, str(paths.nccl_plugin_path())],
                   folder)  # fmt: skip


@pytest.mark.parametrize("name", ["namespaces", "wire"])
def test_net_carries_harp_traffic(name: str, tmp_path: Path) -> None:
    if name == "namespaces" and os.geteuid() != 0:
        pytest.skip("a lab's hosts need root")
    left = set(Path("/dev/shm").glob("harp-gpu-*"))
    with join([name], tmp_path, []) as net:
        job = perf_job(net, tmp_path)
    texts = [Path(log).read_text() for log in job.logs]
    assert job.statuses == [0, 0], texts
    for rank in range(2):
        said = "packet eth0" if name == "namespaces" else "wire:/dev/shm/harp-gpu-"
        assert job.says(rank, rf"HARP .*{said}"), texts[rank]
    assert set(Path("/dev/shm").glob("harp-gpu-*")) <= left


INSIDE = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path("{here}")))
from test_gpu import join, perf_job
with join(["interface"], Path("{folder}"), []) as net:
    job = perf_job(net, Path("{folder}"))
print(job.statuses, net.host, job.says(1, "packet eth0, 10.77.0.1/24"))
"""


def test_both_ranks_may_use_one_interface(tmp_path: Path) -> None:
    """Runs in a host of a lab, so that no other program uses the interface."""
    if os.geteuid() != 0:
        pytest.skip("a lab's hosts need root")
    code = INSIDE.format(here=Path(__file__).parent, folder=tmp_path)
    with Lab(hosts=2) as lab:
        said = lab.hosts[0].run([sys.executable, "-c", code], timeout=90).stdout
    assert said == "[0, 0] 10.77.0.1 True\n"


def test_unavailable_net_is_skipped_with_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tools/gpu uses the next network and reports the reason. Without any, it prints an error."""
    monkeypatch.setattr("tools.measure.gpu_nets.shutil.which", lambda name: None)
    refusals: list[str] = []
    with join(["namespaces", "wire"], tmp_path, refusals) as net:
        assert net.name == "wire"
    assert refusals == ["namespaces: this needs root and ip(8) of iproute2"]
    with pytest.raises(NetError, match=r"ip\(8\)"):
        with join(["namespaces"], tmp_path, []):
            pass
