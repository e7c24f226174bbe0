# SPDX-License-Identifier: Apache-2.0
"""harp exporter serves the metrics of all processes of a node, also of those in containers, and
stays within its bounds while processes come and go."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harp import _tables
from harp.cli import exporter
from harp.cli.exporter import Collector
from harp.observe import ended, flow_sums, message_times, metrics, prometheus, statfile
from harp.testing import _engine

pytest.importorskip("prometheus_client")
from prometheus_client import CollectorRegistry  # noqa: E402
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

COUNTERS = [counter["name"] for counter in _tables.counters()]
RANKS = 8
FULL = bool(os.environ.get("HARP_TEST_FULL"))


def ip(text: str) -> int:
    return int(struct.unpack("=I", socket.inet_aton(text))[0])


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The value of each series. Fails if a series is there twice."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series = (sample.name, frozenset(sample.labels.items()))
            assert series not in found, series
            found[series] = sample.value
    return found


def value(text: str, name: str, **labels: str) -> float:
    """The only series of that name with these labels."""
    (one,) = [
        value
        for (series, of), value in parsed(text).items()
        if series == name and of >= set(labels.items())
    ]
    return one


def promtool(*args: str, text: str = "") -> None:
    """Runs promtool, if this machine has it."""
    if shutil.which("promtool"):
        run = subprocess.run(
            ["promtool", *args], input=text, capture_output=True, text=True, timeout=60
        )
        assert (run.returncode, run.stdout if "metrics" in args else "") == (0, ""), run


@pytest.fixture
def ranks(folders: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The files of 8 ranks, each in the run folder of its container."""
    files = []
    for rank in range(RANKS):
        folder = folders / f"pod{rank}"
        folder.mkdir()
        monkeypatch.setenv("HARP_RUN_DIR", str(folder))
        file = _engine.StatFile(rank=rank, world_size=RANKS, job=b"train", gpu=b"0000:3b:00.0")
        file.set(0, COUNTERS.index("tx_bytes"), 1000 + rank)
        for flow in range(4):
            file.flow(
                flow,
                state=1,
                flow=flow,
                direction="S",
                peer_address=ip(f"10.0.0.{2 + flow % 2}"),
                peer_port=1000 + flow,
                srtt_us=100 * (flow + 1),
                min_rtt_us=50 + flow,
                bytes_out=10 + rank,
                ack_wait_ms=1500,
            )
        files.append(file)
    monkeypatch.setenv("HARP_RUN_DIR", str(folders / "run"))
    yield files
    for file in files:
        file.close()


def text_of(collector: Collector) -> str:
    return "\n".join(prometheus.lines(collector.families())) + "\n"


def check_ranks(text: str, whole: bool = False) -> None:
    """The metrics of the eight ranks, each once. whole: as for Readings."""
    series = parsed(text)
    for name in ("harp_process_info", "harp_tx_bytes_total", "harp_flow_rtt_seconds_count"):
        of = [dict(labels) for one, labels in series if one == name]
        assert sorted(one["rank"] for one in of) == [str(rank) for rank in range(RANKS)]
        assert {(one["job_id"], one["world_size"]) for one in of} == {("train", str(RANKS))}
        assert not {"pid", "job", "instance"} & set(of[0])
    assert value(text, "harp_tx_bytes_total", rank="5") == 1005
    peer = {"rank": "5", "peer": "10.0.0.3"}
    assert value(text, "harp_peer_out_bytes_total", **peer) == 2 * 15 * whole
    assert value(text, "harp_peer_ack_wait_seconds_total", **peer) == 3.0 * whole
    assert value(text, "harp_peer_flows", **peer) == 2
    assert value(text, "harp_peer_receiving_flows", **peer) == 0
    assert value(text, "harp_peer_rtt_seconds", **peer) == 4e-4
    assert value(text, "harp_peer_min_rtt_seconds", **peer) == 5.1e-5
    assert value(text, "harp_flow_rtt_seconds_bucket", rank="5", le="0.0002") == 2
    assert value(text, "harp_flow_rtt_seconds_count", rank="5") == 4
    promtool("check", "metrics", text=text)


def test_eight_containers_have_no_duplicate_series(ranks: list[Any], folders: Path) -> None:
    """The same folder is mounted twice, and a pattern matches it, too."""
    (folders / "again").symlink_to(folders / "pod3")
    patterns = [f"{folders}/pod*", f"{folders}/again", f"{folders}/absent"]
    check_ranks(text_of(Collector(patterns)))
    check_ranks(text_of(Collector(patterns, whole=True)), whole=True)


# A rank that is number 1 of its container, publishes in /dev/shm, and says so.
CONTAINED = """
import sys
from harp.testing import _engine
rank = _engine.job_rank()
name, size = _engine.job()
file = _engine.StatFile(rank=rank, world_size=size, job=name.encode(), instances=2)
print(file.path, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces: needs root")
def test_ranks_in_namespaces_are_told_apart(folders: Path) -> None:
    """Eight containers with namespaces of their own: each has pid 1, the same host name, and the
    same path of the run folder, which is a folder of the host."""
    shell = 'mount --bind "$1" /dev/shm && hostname pod && HARP_RUN_DIR=/dev/shm exec "$2" -c "$3"'
    containers = []
    try:
        for rank in range(RANKS):
            folder = folders / f"pod{rank}"
            folder.mkdir()
            args = ["unshare", "--pid", "--mount", "--uts", "--ipc", "--fork", "sh", "-c", shell]
            of = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "HARP_JOB": "run"}
            containers.append(
                subprocess.Popen(
                    [*args, "sh", str(folder), sys.executable, CONTAINED],
                    env={**os.environ, **of},
                    text=True,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
        for one in containers:
            assert one.stdout and one.stdout.readline().startswith("/dev/shm/")
        text = text_of(Collector([f"{folders}/pod*"]))
        promtool("check", "metrics", text=text)
        info = [dict(of) for name, of in parsed(text) if name == "harp_process_info"]
        assert sorted(one["rank"] for one in info) == [str(rank) for rank in range(RANKS)]
        assert {(one["job_id"], one["world_size"], one["host"]) for one in info} == {
            ("run", str(RANKS), "pod")
        }
    finally:
        for one in containers:
            one.communicate(timeout=20)
    assert not [one for one in Collector([f"{folders}/pod*"]).families() if one.samples]


def test_files_of_a_user_are_bounded(
    ranks: list[Any], folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statfile, "FILES_MOST", 3)
    assert len(statfile.scan(Collector([f"{folders}/pod*"]).folders())) == 3


def test_exporter_and_stat_print_the_same(ranks: list[Any], harp: Any, folders: Path) -> None:
    pattern = str(folders / "pod2")
    harp("exporter", "--folder", pattern, "--textfile", str(folders / "harp.prom"), "--once")
    os.environ["HARP_RUN_DIR"] = pattern
    assert parsed((folders / "harp.prom").read_text()) == parsed(
        harp("stat", "--prometheus").stdout
    )


def test_http_serves_all_ranks(ranks: list[Any], folders: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    args = ["exporter", "--listen", f"127.0.0.1:{port}", "--folder", f"{folders}/pod*"]
    process = subprocess.Popen(
        [sys.executable, "-m", "harp", *args], text=True, stderr=subprocess.PIPE
    )
    try:
        assert process.stderr and "/metrics" in process.stderr.readline()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            check_ranks(answer.read().decode())
        taken = subprocess.run(
            [sys.executable, "-m", "harp", *args], capture_output=True, text=True, timeout=60
        )
        assert taken.returncode == 1 and "give another --listen" in taken.stderr
    finally:
        process.terminate()
        process.wait(30)


def test_textfile_is_replaced_and_removed(ranks: list[Any], folders: Path) -> None:
    target = folders / "harp.prom"
    args = ["--textfile", str(target), "--interval", "0.1", "--folder", f"{folders}/pod*"]
    process = subprocess.Popen([sys.executable, "-m", "harp", "exporter", *args])
    try:
        seen: set[int] = set()
        end = time.monotonic() + 60
        while len(seen) < 3:
            assert time.monotonic() < end
            if target.exists():
                check = target.open()
                seen.add(os.fstat(check.fileno()).st_ino)
                assert check.read().endswith("\n")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert [one.name for one in folders.iterdir() if one.is_file()] == []
    finally:
        process.kill()
        process.wait()


def test_end_amid_a_write_leaves_no_file(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """prometheus_client writes to a temporary file, and SIGTERM raises SystemExit."""

    def interrupted(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(SystemExit):
        exporter._write(CollectorRegistry(), folders / "harp.prom")
    assert [one.name for one in folders.iterdir() if one.is_file()] == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--listen", "9752"], "is not ADDRESS:PORT"),
        (["--listen", "0.0.0.0:70000"], "is not ADDRESS:PORT"),
        (["--once"], "--once needs --textfile"),
    ],
)
def test_wrong_usage_is_named(harp: Any, folders: Path, args: list[str], said: str) -> None:
    assert said in harp("exporter", *args, code=2).stderr


def test_absent_folder_of_textfile_is_named(harp: Any, folders: Path) -> None:
    args = ["--textfile", str(folders / "absent/harp.prom"), "--once"]
    assert "give --textfile a folder that exists" in harp("exporter", *args, code=1).stderr


# -- sums of flows


def flow(number: int, peer: str = "10.0.0.2", **more: Any) -> statfile.Flow:
    values: dict[str, Any] = {name: 0 for name in statfile.Flow.__dataclass_fields__}
    values |= {"message_times": (), "direction": ""}
    values |= {"flow": number, "peer": f"{peer}:{number}", "local": "10.0.0.1:1", "srtt_us": 100}
    return statfile.Flow(**(values | more))


def test_sums_keep_closed_flows() -> None:
    sums = flow_sums.FlowSums()
    sums.add([flow(1, bytes_out=100), flow(2, bytes_out=50)])
    sums.add([flow(1, bytes_out=130)])  # flow 2 is closed, or its entry kept changing
    assert sums.peers["10.0.0.2"].sums[0] == 180 and sums.peers["10.0.0.2"].flows == 1
    sums.add([flow(1, bytes_out=130), flow(2, bytes_out=60)])  # it only kept changing
    assert sums.peers["10.0.0.2"].sums[0] == 190
    sums.add([flow(1, bytes_out=130, opened=1.0)])  # a new connection of flow 1
    assert sums.peers["10.0.0.2"].sums[0] == 320
    sums.add([])
    peer = sums.peers["10.0.0.2"]
    assert (peer.sums[0], peer.flows, peer.rtt_us) == (320, 0, 0)


def test_closed_flow_that_lingers_is_no_new_flow() -> None:
    """The process has closed the flow, and the peer has not: it belongs to no link any more."""
    sums = flow_sums.FlowSums()
    times = (0,) * (message_times.BUCKETS - 1) + (3,)
    sums.add([flow(1, link=7, direction="S", bytes_out=100, message_times=times)])
    sums.add([flow(1, state="FIN-WAIT-2", bytes_out=101, message_times=times)])
    sums.add([flow(1, state="FIN-WAIT-2", bytes_out=101, message_times=times)])
    peer = sums.peers["10.0.0.2"]
    assert peer.sums[0] == 101 and sum(peer.messages["S"]) == 3


def test_flows_that_receive_are_counted_by_themselves() -> None:
    """Each link has flows of one direction, and only those that receive wait for receives."""
    sums = flow_sums.FlowSums()
    both = [flow(1, direction="S"), flow(2, direction="R"), flow(3, direction="R")]
    sums.add(both)
    sums.add(both)
    peer = flow_sums.total(sums.peers.values())
    assert (peer.flows, peer.receiving) == (3, 2)


def test_restart_of_the_exporter_adds_nothing(folders: Path) -> None:
    """Sums over closed flows end with the exporter. What the open flows did before the new one's
    start counts for the old one only."""
    file = _engine.StatFile(rank=0)
    more: dict[str, Any] = {"state": 1, "peer_address": ip("10.0.0.2"), "direction": "S"}

    def sent(collector: Collector) -> tuple[float, float]:
        text = text_of(collector)
        messages = value(text, "harp_message_seconds_count")
        return value(text, "harp_peer_out_bytes_total"), messages

    collector = Collector([])
    file.flow(0, bytes_out=500, opened_ns=1, message_times_ns=[1] * 5, **more)
    assert sent(collector) == (0, 0)
    file.flow(0, bytes_out=700, opened_ns=1, message_times_ns=[1] * 7, **more)
    file.flow(1, flow=1, bytes_out=40, opened_ns=2, message_times_ns=[1] * 4, **more)
    assert sent(collector) == (240, 6)
    assert sent(Collector([])) == (0, 0)
    file.close()


def errors(collector: Collector) -> dict[str, float]:
    """The failed links by rank."""
    series = parsed(text_of(collector)).items()
    return {
        dict(of)["rank"]: value for (name, of), value in series if name == "harp_link_errors_total"
    }


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_last_error_of_a_process_is_seen_after_its_end(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link fails, and the process ends before the next scrape. Its gauges end with it, and it is
    not among the running processes."""
    before = descriptors()
    collector = Collector([], whole=True)
    file = _engine.StatFile(rank=0)
    file.set(0, COUNTERS.index("links"), 3)
    of_flow: dict[str, Any] = {"state": 1, "peer_address": ip("10.0.0.2"), "direction": "S"}
    file.flow(0, bytes_out=500, **of_flow)
    text = text_of(collector)
    assert value(text, "harp_links", rank="0") == 3
    file.set(0, COUNTERS.index("link_errors"), 2)
    file.flow(0, bytes_out=700, **of_flow)
    file.close()
    for flows in (1, 0):
        text = text_of(collector)
        assert value(text, "harp_link_errors_total", rank="0") == 2
        assert value(text, "harp_peer_out_bytes_total", rank="0") == 700
        assert value(text, "harp_peer_flows", rank="0") == flows
        of_running = {"harp_links", "harp_process_info", "harp_process_start_time_seconds"}
        assert not of_running.intersection(name for name, _ in parsed(text))
    assert descriptors() == before
    at = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: at + ended.SHOWN_S)
    assert errors(collector) == {}


def test_files_are_closed_when_no_reading_comes(
    ranks: list[Any], folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed file uses memory as long as it is open, and the next scrape may never come."""
    before = descriptors()
    collector = Collector([str(folders / "pod*")])
    text_of(collector)
    assert descriptors() == before + RANKS
    with monkeypatch.context() as short:
        short.setattr(ended, "SHOWN_S", 0.05)
        text_of(collector)
        until = time.monotonic() + 20
        while descriptors() > before:
            assert time.monotonic() < until
            time.sleep(0.02)
    text_of(collector)
    assert descriptors() == before + RANKS


def test_files_that_are_kept_open_are_bounded(
    ranks: list[Any], folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = descriptors()
    found = statfile.scan([folders / f"pod{rank}" for rank in range(RANKS)])
    for owner, name, most in ((ended, "OPEN_MOST", 3), (statfile, "FILES_MOST", 2)):
        monkeypatch.setattr(owner, name, most)
        last = ended.LastReadings()
        assert last.add(found) == [] and descriptors() == before + most
        assert last.add([]) == [] and descriptors() == before, "they still run"
    last.add(found)
    for file in ranks:
        file.close()
    before -= RANKS
    for _ in range(2):
        assert len(last.add([])) == most and descriptors() == before


def test_sums_of_a_process_survive_a_few_readings_without_it(folders: Path) -> None:
    file = _engine.StatFile(rank=0)
    (process,) = statfile.scan([folders / "run"])
    file.close()
    first = replace(process, flows=[flow(1, bytes_out=100), flow(2, bytes_out=50)])
    later = replace(process, flows=[flow(1, bytes_out=130)])
    readings = flow_sums.Readings()
    for absent in (flow_sums.ABSENT_MOST - 1, flow_sums.ABSENT_MOST):
        readings.add([first])
        for _ in range(absent):
            assert readings.add([]) == []
        (sums,) = readings.add([later])
        kept = absent < flow_sums.ABSENT_MOST
        assert sums.peers["10.0.0.2"].sums[0] == (180 if kept else 130)


def test_readings_keep_no_closed_flows() -> None:
    sums = flow_sums.FlowSums()
    for i in range(3):
        sums.add([flow(1, opened=float(i))])
    before = sys.getallocatedblocks()
    for i in range(2000):
        sums.add([flow(1, opened=float(i))])
    assert sys.getallocatedblocks() < before + 2000


def test_peers_beyond_the_bound_share_one_series() -> None:
    sums = flow_sums.FlowSums()
    many = [flow(i, f"10.0.{i // 250}.{i % 250}", bytes_out=i) for i in range(500)]
    sums.add(many)
    assert len(sums.peers) == flow_sums.PEERS_MOST + 1
    assert "10.0.1.249" in sums.peers  # the busiest have series of their own
    assert sums.peers[flow_sums.OTHER].flows == 500 - flow_sums.PEERS_MOST
    assert sum(peer.sums[0] for peer in sums.peers.values()) == sum(range(500))
    sums.add([flow(i, "10.9.0.1", bytes_out=1) for i in range(3)])
    assert len(sums.peers) == flow_sums.PEERS_MOST + 1 and sums.peers[flow_sums.OTHER].flows == 3


def test_a_false_file_adds_few_families(folders: Path) -> None:
    file = _engine.StatFile()
    (process,) = statfile.scan([folders / "run"])
    for i in range(5000):
        process.kinds[f"z_false_{i}"] = "count"
        process.instances[0][f"z_false_{i}"] = i
    process.kinds["process_info"] = process.kinds["peer_flows"] = "gauge"
    process.instances[0]["process_info"] = process.instances[0]["peer_flows"] = 7
    process.instances.extend(process.instances[:1] * 100)
    found = metrics.families([process], flow_sums.Readings())
    names = [family.name for family in found]
    assert len(names) == len(set(names))
    assert len([name for name in names if "false" in name]) == metrics.FOREIGN_MOST
    assert all(value != 7 for family in found for _, _, value in family.samples)
    assert {len(family.samples) for family in found if "false" in family.name} == {8}
    file.close()


DAY_S = 24 * 3600
SCRAPE_S = 15
JOB_S = 600  # a job of 8 ranks ends and the next begins


@pytest.mark.slow
@pytest.mark.timeout(3600 if FULL else 120)
def test_a_day_of_scrapes_stays_bounded(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings of 24 hours while jobs come and go, and with them their flows and peers. The memory
    blocks that stay and the number of series do not grow with time."""
    monkeypatch.setattr(ended, "SHOWN_S", 0)
    jobs = DAY_S // JOB_S if FULL else 12
    scrapes = JOB_S // SCRAPE_S if FULL else 3
    collector = Collector([])
    sizes, series = [], []
    for job in range(jobs):
        files = [_engine.StatFile(rank=rank, job=f"job{job}".encode()) for rank in range(RANKS)]
        for scrape in range(scrapes):
            for file in files:
                for i in range(4):
                    file.flow(
                        i,
                        state=1,
                        peer_port=i + 1,
                        peer_address=ip(f"10.{job}.{scrape}.{i}"),
                        opened_ns=job * scrapes + scrape,
                        srtt_us=100,
                        bytes_out=1,
                    )
            families = collector.families()
        names = [(name, *of.items()) for one in families for name, of, _ in one.samples]
        assert len(names) == len(set(names))
        series.append(len(names))
        for file in files:
            file.close()
        collector.families()  # their last values
        assert [one.samples for one in collector.families() if one.samples] == []
        del families, names, files
        gc.collect()
        sizes.append(sys.getallocatedblocks())
    assert max(series) == min(series) <= RANKS * (len(COUNTERS) + 30 + 10 * 65)
    assert max(sizes[len(sizes) // 2 :]) < max(sizes[2 : len(sizes) // 2]) + 2000
