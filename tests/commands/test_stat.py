# SPDX-License-Identifier: Apache-2.0
"""harp stat and top show the statistics of processes as text, JSON and Prometheus' format."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harp import _tables
from harp.testing import _engine

NAMES = [counter["name"] for counter in _tables.counters()]


def ip(text: str) -> int:
    return int(struct.unpack("=I", socket.inet_aton(text))[0])


@pytest.fixture
def published(folders: Path) -> Iterator[_engine.StatFile]:
    file = _engine.StatFile(instances=2, device=b'wire:/a"b\\', address=b"10.0.0.1/24")
    file.set(0, NAMES.index("tx_bytes"), 1000)
    file.set(1, NAMES.index("tx_bytes"), 500)
    file.set(1, NAMES.index("links"), 2)
    file.flow(
        0,
        state=1,
        link=3,
        flow=1,
        direction="S",
        local_address=ip("10.0.0.1"),
        local_port=50000,
        peer_address=ip("10.0.0.2"),
        peer_port=51000,
        cwnd=14480,
        srtt_us=250,
        bytes_out=77,
    )
    yield file
    file.close()


def test_stat_without_processes(harp: Any, folders: Path) -> None:
    assert "no process with HARP runs here" in harp("stat").stdout
    assert json.loads(harp("stat", "--json").stdout)["processes"] == []
    assert "no process with pid 1 runs here" in harp("stat", "--pid", "1", code=1).stderr


def test_stat_prints_text(harp: Any, published: Any) -> None:
    text = harp("stat").stdout
    assert re.search(r"tx_bytes +1500  \(1000 \+ 500\)\n", text)
    assert "rx_bytes" not in text
    assert "link 3 flow 1 S ESTABLISHED 10.0.0.1:50000 10.0.0.2:51000" in text
    assert "cwnd:14480" in text and "rtt:0.25/0" in text and "bytes_acked:77" in text
    assert re.search(r"rx_bytes +0 ", harp("stat", "--all").stdout)
    assert "Bytes in frames handed to the port." in harp("stat", "--explain").stdout


def test_stat_prints_json(harp: Any, published: Any) -> None:
    (process,) = json.loads(harp("stat", "--json", "--pid", str(os.getpid())).stdout)["processes"]
    assert process["pid"] == os.getpid() and process["alive"]
    assert [one["tx_bytes"] for one in process["instances"]] == [1000, 500]
    assert process["totals"]["tx_bytes"] == 1500
    assert process["flows"][0]["peer"] == "10.0.0.2:51000"
    assert list(process["totals"]) == NAMES


def test_stat_prints_prometheus(harp: Any, published: Any) -> None:
    lines = harp("stat", "--prometheus").stdout.splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    families = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
    assert families["harp_tx_bytes_total"] == "counter" and families["harp_links"] == "gauge"
    assert len(families) == len(NAMES) + 2
    assert len(samples) == 2 * len(NAMES) + 2
    sample = re.compile(
        r'harp_\w+\{\w+="(?:[^"\\]|\\.)*"(?:,\w+="(?:[^"\\]|\\.)*")*\} \d+(?:\.\d+)?'
    )
    assert [line for line in samples if not sample.fullmatch(line)] == []
    assert any(
        re.fullmatch(r'harp_tx_bytes_total\{.*,instance="1"\} 500', line) for line in samples
    )
    for family in families:
        assert any(line.startswith(f"# HELP {family} ") for line in lines)


# Publishes as the rank of its environment, with pid 1 in its own pid namespace.
FIRST_OF_ITS_OWN = """
import os, sys
from harp.testing import _engine
assert os.getpid() == 1
file = _engine.StatFile(rank=_engine.job_rank(), gpu=sys.argv[1].encode())
print(file.path, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="makes pid namespaces: needs root")
def test_processes_with_equal_pid_have_distinct_samples(harp: Any, folders: Path) -> None:
    ranks = []
    for rank, gpu in enumerate(["0000:3b:00.0", "0000:86:00.0"]):
        ranks.append(
            subprocess.Popen(
                ["unshare", "--pid", "--fork", sys.executable, "-c", FIRST_OF_ITS_OWN, gpu],
                env={**os.environ, "RANK": str(rank)},
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
    try:
        ids = [Path(one.stdout.readline().strip()).stem for one in ranks if one.stdout]
        samples = [
            line.rpartition(" ")[0]
            for line in harp("stat", "--prometheus").stdout.splitlines()
            if not line.startswith("#")
        ]
        assert len(samples) == len(set(samples)) == 2 * (len(NAMES) + 2)
        assert not any("pid=" in line or "started=" in line for line in samples)
        info = [line for line in samples if line.startswith("harp_process_info")]
        for rank, (gpu, name) in enumerate(zip(["0000:3b:00.0", "0000:86:00.0"], ids)):
            wanted = [
                f'rank="{rank}"',
                f'host="{socket.gethostname()}"',
                f'gpu="{gpu}"',
                f'id="{name}"',
            ]
            assert [line for line in info if all(label in line for label in wanted)]
            for words in (["--rank", str(rank)], ["--id", name[:8]], ["--pid", "1", "--id", name]):
                (process,) = json.loads(harp("stat", "--json", *words).stdout)["processes"]
                assert (process["id"], process["rank"], process["gpu"]) == (name, rank, gpu)
        assert f"rank 1 pid 1 on {socket.gethostname()}" in harp("stat").stdout
        rows = json.loads(harp("top", "-n", "1", "-d", "0.1", "--json").stdout)["processes"]
        assert {(row["id"], row["rank"]) for row in rows} == set(zip(ids, (0, 1)))
        assert "no process with rank 2 runs here" in harp("stat", "--rank", "2", code=1).stderr
    finally:
        for one in ranks:
            one.communicate(timeout=20)


def test_wrong_usage_exits_2(harp: Any) -> None:
    harp("stat", "--json", "--prometheus", code=2)


def test_stat_prints_trace(harp: Any, folders: Path) -> None:
    code = """
from harp.testing import _engine
ring = _engine.Trace(8)
ring.record(1000, 65535, 0, 1, 2)
ring.record(3500, 2, 1, 0, 70)
print(_engine.dump([ring], b"peer 10.0.0.2 is silent", 4000))
"""
    path = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()
    text = harp("stat", "--trace", path).stdout.splitlines()
    assert text[0].endswith("peer 10.0.0.2 is silent")
    assert re.search(r"\+0\.000 us  instance 0 flow -     poll +frames_in=1 frames_out=2$", text[1])
    assert re.search(r"\+2\.500 us  instance 0 flow 2     sleep +timeout_us=70$", text[2])
    records = json.loads(harp("stat", "--json", "--trace", path).stdout)["records"]
    assert [record["event"] for record in records] == ["poll", "sleep"]
    assert "not a trace of HARP's" in harp("stat", "--trace", "/etc/passwd", code=1).stderr
    assert "No such file" in harp("stat", "--trace", "/absent", code=1).stderr


def test_top_prints_rates(harp: Any, published: Any) -> None:
    ended = threading.Event()

    def work() -> None:
        begun = time.monotonic()
        while not ended.wait(0.005):
            gbit = time.monotonic() - begun  # at 1 Gbit/s
            published.set(0, NAMES.index("rx_bytes"), int(gbit * 1e9 / 8))
            published.set(1, NAMES.index("tx_bytes"), int(gbit * 1e9 / 16))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        lines = harp("top", "-n", "2", "-d", "0.4", "--json").stdout.splitlines()
        text = harp("top", "-n", "1", "-d", "0.2").stdout
    finally:
        ended.set()
        worker.join()
    assert len(lines) == 2
    (process,) = json.loads(lines[1])["processes"]
    # The counters move when this machine lets the thread run; both move then.
    assert 0.5 < process["in_gbit"] < 2 and 1.9 < process["in_gbit"] / process["out_gbit"] < 2.1
    assert process["links"] == 2
    header, row = text.splitlines()
    assert "IN Gbit/s" in header and row.split()[2] == str(os.getpid())


def test_top_ends_on_sigint(folders: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "harp", "top", "-d", "0.1"],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.1)
    process.send_signal(2)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0 and "Traceback" not in errors
