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
from click.testing import CliRunner

from harp import _tables
from harp.cli.stat import stat
from harp.cli.top import Rates, in_order
from harp.observe import flow_sums, statfile
from harp.testing import _engine

COUNTERS = [counter["name"] for counter in _tables.counters()]
NAMES = COUNTERS + list(_tables.counter_aliases())


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
        window_wait_ms=1234,
    )
    yield file
    file.close()


def test_stat_without_processes(harp: Any, folders: Path) -> None:
    said = harp("stat").stdout
    assert "no process with HARP runs here" in said
    assert "; --containers also finds processes that could not write there)" in said
    assert "--containers" not in statfile.nobody()
    assert json.loads(harp("stat", "--json").stdout)["processes"] == []
    assert "no process with pid 1 runs here" in harp("stat", "--pid", "1", code=1).stderr


def test_stat_prints_text(harp: Any, published: Any) -> None:
    text = harp("stat").stdout
    assert re.search(r"tx_bytes +1500  \(1000 \+ 500\)\n", text)
    assert "rx_bytes" not in text
    assert "link 3 flow 1 S ESTABLISHED 10.0.0.1:50000 10.0.0.2:51000" in text
    assert "cwnd:14480" in text and "rtt:0.25/0" in text and "bytes_acked:77" in text
    assert "ack_wait:0 window_wait:1234 device_wait:0 receive_wait:0" in text
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
    counted = [line for line in samples if 'queue="' in line]
    assert len({line.partition("{")[0] for line in counted}) == len(NAMES)
    assert len(counted) == 2 * len(NAMES)
    sample = re.compile(
        r'harp_\w+\{\w+="(?:[^"\\]|\\.)*"(?:,\w+="(?:[^"\\]|\\.)*")*\} \d+(?:\.\d+)?(?:e-\d+)?'
    )
    assert [line for line in samples if not sample.fullmatch(line)] == []
    assert any(re.fullmatch(r'harp_tx_bytes_total\{.*,queue="1"\} 500', line) for line in samples)
    for family in families:
        assert any(line.startswith(f"# HELP {family} ") for line in lines)


@pytest.fixture
def two_nics(folders: Path) -> Iterator[list[_engine.StatFile]]:
    """The files of this process's two NICs."""
    files = []
    for number in range(2):
        device = f"fault:|packet:nic{number}" if number else "packet:nic0"
        file = _engine.StatFile(instances=2, device=device.encode())
        file.set(0, NAMES.index("tx_bytes"), 100 + number)
        file.set(1, NAMES.index("tx_bytes"), 200)
        file.flow(0, state=1, link=number, direction="S")
        files.append(file)
    yield files
    for file in files:
        file.close()


def test_stat_shows_all_nics_of_process(harp: Any, two_nics: list[_engine.StatFile]) -> None:
    lines = harp("stat").stdout.splitlines()
    assert len([line for line in lines if " pid " in line]) == 1 and lines[0].endswith(", 2 NICs")
    nics = [
        line.split(",")[0].strip() for line in lines if "packet:" in line and "link" not in line
    ]
    assert nics == ["packet:nic0", "fault:|packet:nic1"]
    assert any(re.fullmatch(r" +tx_bytes +601  \(300 \+ 301\)", line) for line in lines)
    flows = [line.split() for line in lines if line.startswith("  link")]
    assert [(fields[1], fields[-1]) for fields in flows] == [("0", nics[0]), ("1", nics[1])]


@pytest.mark.parametrize("args", [["--device", "nic1"], ["--device", "packet:nic1"], ["--id"]])
def test_stat_shows_chosen_nic(
    harp: Any, two_nics: list[_engine.StatFile], args: list[str]
) -> None:
    args = [*args, Path(two_nics[1].path).stem] if args == ["--id"] else args
    text = harp("stat", *args).stdout
    assert re.search(r"tx_bytes +301  \(101 \+ 200\)\n", text) and "NICs" not in text
    assert (
        "no process with device eth9 runs here" in harp("stat", "--device", "eth9", code=1).stderr
    )


def test_json_and_prometheus_name_nic_and_process(
    harp: Any, two_nics: list[_engine.StatFile]
) -> None:
    rows = json.loads(harp("stat", "--json").stdout)["processes"]
    assert {row["process_id"] for row in rows} == {rows[0]["process_id"]}
    whole = json.loads(harp("stat", "--json", "--id", rows[0]["process_id"]).stdout)["processes"]
    assert [row["device"] for row in whole] == ["packet:nic0", "fault:|packet:nic1"]
    assert [row["totals"]["tx_bytes"] for row in whole] == [300, 301]
    samples = [
        line
        for line in harp("stat", "--prometheus").stdout.splitlines()
        if not line.startswith("#")
    ]
    for row in rows:
        label = f'device="{row["device"]}"'
        counted = [one for one in samples if label in one and 'queue="' in one]
        assert len(counted) == 2 * len(NAMES)
        (info,) = [one for one in samples if one.startswith("harp_process_info") and label in one]
        assert f'process="{row["process_id"]}"' in info
    view = json.loads(harp("top", "-n", "1", "-d", "0.1", "--json").stdout)["processes"]
    assert [(row["device"], row["process_id"]) for row in view] == [
        (row["device"], row["process_id"]) for row in rows
    ]


CHILD = """
import os, sys
from pathlib import Path
from harp.observe import statfile
from harp.testing import _engine
ours = _engine.StatFile()
if os.fork() == 0:
    theirs = _engine.StatFile()
    assert len({statfile.read(Path(one.path)).process_id for one in (ours, theirs)}) == 2
    theirs.close()
    os._exit(0)
sys.exit(os.wait()[1])
"""


def test_forked_child_is_another_process(folders: Path) -> None:
    assert subprocess.run([sys.executable, "-c", CHILD]).returncode == 0


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
        assert len(samples) == len(set(samples))
        assert len([line for line in samples if 'queue="' in line]) == 2 * len(NAMES)
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
            for args in (["--rank", str(rank)], ["--id", name[:8]], ["--pid", "1", "--id", name]):
                (process,) = json.loads(harp("stat", "--json", *args).stdout)["processes"]
                assert (process["id"], process["rank"], process["gpu"]) == (name, rank, gpu)
        assert f"rank 1 pid 1 on {socket.gethostname()}" in harp("stat").stdout
        rows = json.loads(harp("top", "-n", "1", "-d", "0.1", "--json").stdout)["processes"]
        assert {(row["id"], row["rank"]) for row in rows} == set(zip(ids, (0, 1)))
        assert "no process with rank 2 runs here" in harp("stat", "--rank", "2", code=1).stderr
    finally:
        for one in ranks:
            one.communicate(timeout=20)


def test_renamed_counters_keep_old_names(harp: Any, published: Any) -> None:
    published.set(0, COUNTERS.index("unauthenticated_drops"), 3)
    published.set(1, COUNTERS.index("unauthenticated_drops"), 4)
    for old, new in _tables.counter_aliases().items():
        assert new in COUNTERS and old not in COUNTERS
    text = harp("stat").stdout
    assert re.search(r"unauthenticated_drops +7  \(3 \+ 4\)\n", text)
    assert re.search(r"strangers +7  \(3 \+ 4\)  Old name of unauthenticated_drops\.\n", text)
    (process,) = json.loads(harp("stat", "--json").stdout)["processes"]
    assert process["totals"]["strangers"] == 7
    assert [one["strangers"] for one in process["instances"]] == [3, 4]
    lines = harp("stat", "--prometheus").stdout.splitlines()
    samples = [line for line in lines if line.startswith("harp_strangers_total{")]
    assert [line.rpartition(" ")[2] for line in samples] == ["3", "4"]
    assert "# TYPE harp_strangers_total counter" in lines


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
    text = harp("stat", "--all-events", "--trace", path).stdout.splitlines()
    assert text[0].endswith("peer 10.0.0.2 is silent") and len(text) == 4
    assert re.search(r"\+0\.000 us  instance 0 flow -     poll +frames_in=1 frames_out=2$", text[2])
    assert re.search(r"\+2\.500 us  instance 0 flow 2     sleep +timeout_us=70$", text[3])
    records = json.loads(harp("stat", "--json", "--trace", path).stdout)["records"]
    assert [record["event"] for record in records] == ["poll", "sleep"]
    assert "not a trace of HARP's" in harp("stat", "--trace", "/etc/passwd", code=1).stderr
    assert "No such file" in harp("stat", "--trace", "/absent", code=1).stderr


def test_trace_hides_frequent_events(harp: Any, folders: Path) -> None:
    """The time of a line counts from the line before it, not from a hidden event."""
    names = [event["name"] for event in _tables.trace_events()]
    rto, chunk, closed = map(names.index, ("rto", "chunk_out", "closed"))
    code = f"""
from harp.testing import _engine
ring = _engine.Trace(8)
ring.record(1000, 65535, 0, 1, 2)
ring.record(2000, 40000, {rto}, 1, 64)
ring.record(3000, 40001, {rto}, 1, 64)
ring.record(4000, 40000, {chunk}, 1448, 0)
ring.record(5500, 40000, {closed}, 110, 0)
print(_engine.dump([ring], b"", 6000))
"""
    path = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()
    said = harp("stat", "--trace", path).stdout.splitlines()
    assert said[1].startswith("2 events of polls, segments, chunks and messages are hidden")
    assert [line.split()[7] for line in said[3:]] == ["rto", "rto", "closed"]
    assert [line.split()[1] for line in said[3:]] == ["+0.000", "+1.000", "+2.500"]
    one = harp("stat", "--flow", "40000", "--explain", "--trace", path).stdout.splitlines()
    assert [line.split()[1] for line in one[2:4]] == ["+0.000", "+3.500"]
    assert one[4:] == [
        "rto              The retransmission timer fired.",
        "closed           The flow's connection has ended.",
    ]
    whole = harp("stat", "--all-events", "--trace", path).stdout
    assert "hidden" not in whole and len(whole.splitlines()) == 7
    records = json.loads(harp("stat", "--json", "--trace", path).stdout)["records"]
    assert [record["event"] for record in records] == ["poll", "rto", "rto", "chunk_out", "closed"]
    wrong = harp("stat", "--flow", "1", "--trace", path, code=1).stderr
    assert "no event of flow 1; its flows are: 40000, 40001" in wrong


@pytest.mark.parametrize("option", [["--flow", "40000"], ["--all-events"]])
def test_options_of_trace_need_trace(harp: Any, option: list[str]) -> None:
    assert "need --trace" in harp("stat", *option, code=2).stderr


def test_missing_trace_is_named() -> None:
    done = CliRunner().invoke(stat, ["--trace", "/absent"])
    assert done.exit_code == 1 and done.output == "Error: /absent: No such file or directory\n"


def test_top_says_that_nothing_runs(harp: Any, folders: Path) -> None:
    for args, said in ([], "HARP ran here"), (["--peer", "10.0.0.2"], "HARP and such a job"):
        shown = harp("top", "-n", "1", "-d", "0.1", *args).stdout.splitlines()
        assert len(shown) == 2 and shown[1].startswith(f"no process with {said}")


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
    # The counters move when this machine lets the thread run. A reader may come between the two.
    assert 0.2 < process["in_gbit"] < 5, "bytes would be 0.125, and twice the bits 8"
    assert 1 < process["in_gbit"] / process["out_gbit"] < 4
    assert process["links"] == 2
    header, row = text.splitlines()
    assert "IN Gbit/s" in header and row.split()[2] == str(os.getpid())


@pytest.fixture
def three_peers(folders: Path) -> Iterator[list[_engine.StatFile]]:
    """The files of three NICs with a flow each; the second has sent the most."""
    files = []
    for number, sent in enumerate((10, 30, 20)):
        file = _engine.StatFile(device=f"packet:nic{number}".encode(), rank=2 - number)
        file.set(0, NAMES.index("links"), sent)
        file.flow(0, state=1, peer_address=ip(f"10.0.0.{number + 2}"), peer_port=7)
        files.append(file)
    yield files
    for file in files:
        file.close()


@pytest.mark.parametrize(
    ("args", "nics"),
    [
        ([], "012"),
        (["--sort", "links"], "120"),
        (["--sort", "rank"], "210"),
        (["--peer", "10.0.0.3"], "1"),
        (["--peer", "10.0.0.3", "--peer", "10.0.0.4", "--sort", "rank"], "21"),
        (["--peer", "10.0.0.30"], ""),
        (["--peer", "10.0.0.2/31"], "01"),
        (["--device", "nic2"], "2"),
        (["--device", "nic2", "--peer", "10.0.0.2"], ""),
    ],
)
def test_top_sorts_and_chooses(
    harp: Any, three_peers: list[_engine.StatFile], args: list[str], nics: str
) -> None:
    shown = harp("top", "-n", "1", "-d", "0.1", "--json", *args).stdout
    found = [one["device"] for one in json.loads(shown)["processes"]]
    assert found == [f"packet:nic{number}" for number in nics]


def test_top_puts_unknown_ranks_last() -> None:
    known = {name: 0 for name in Rates.__dataclass_fields__}
    view = [Rates(**{**known, "rank": rank, "links": 1}) for rank in (None, 1, 0)]
    assert [one.rank for one in in_order(view, "rank")] == [0, 1, None]


@pytest.fixture
def flows_of_two_nics(folders: Path) -> Iterator[None]:
    """Two NICs with two flows each. Both have one with 10.0.0.2, so its sums have both."""
    ends = [
        [("10.0.0.2", 7, 1, "S"), ("10.0.0.3", 7, 8, "R")],
        [("10.0.0.2", 9, 8, "R"), ("10.0.1.10", 50000, 1, "R")],
    ]
    files = []
    for nic, flows in enumerate(ends):
        file = _engine.StatFile(device=f"packet:nic{nic}".encode(), rank=nic)
        file.set(0, NAMES.index("tx_bytes"), 5)
        for index, (peer, port, state, direction) in enumerate(flows):
            scale = 10 ** (2 * nic + index)  # each flow has a decimal digit of the sums
            file.flow(
                index,
                state=state,
                direction=direction,
                local_address=ip("10.0.0.1"),
                local_port=50000 + index,
                peer_address=ip(peer),
                peer_port=port,
                bytes_out=1 * scale,
                bytes_in=2 * scale,
                retransmits=3 * scale,
                ack_wait_ms=4 * scale,
                window_wait_ms=5 * scale,
                device_wait_ms=6 * scale,
                receive_wait_ms=7 * scale,
                srtt_us=8 * scale,
                min_rtt_us=9 * scale,
                message_times_ns=[1_500_000],
            )
        files.append(file)
    yield
    for file in files:
        file.close()


# The peers are those of the flows that fit: address and port.
@pytest.mark.parametrize(
    ("args", "fitting"),
    [
        (["--peer", "10.0.0.2"], ["2:7", "2:9"]),
        (["--peer", "10.0.0.0/24"], ["2:7", "3:7", "2:9"]),
        (["--peer", "10.0.0.3", "--peer", "10.0.1.0/24"], ["3:7", "10:50000"]),
        (["--port", "50000"], ["2:7", "2:9", "10:50000"]),
        (["--port", "9", "--port", "50001"], ["3:7", "2:9", "10:50000"]),
        (["--state", "close-wait"], ["3:7", "2:9"]),
        (["--state", "CLOSE-WAIT", "--state", "ESTABLISHED", "--port", "7"], ["2:7", "3:7"]),
        (["--state", "ESTABLISHED", "--peer", "10.0.0.0/16", "--rank", "1"], ["10:50000"]),
    ],
)
def test_stat_selects_flows(flows_of_two_nics: None, args: list[str], fitting: list[str]) -> None:
    done = CliRunner().invoke(stat, ["--json", *args])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["processes"]
    assert [flow["peer"].split(".")[3] for one in found for flow in one["flows"]] == fitting
    assert all(one["flows"] for one in found), "a process without such a flow is left out"


def test_stat_of_selected_flows_has_no_counters(flows_of_two_nics: None) -> None:
    text = CliRunner().invoke(stat, ["--peer", "10.0.1.10"]).stdout
    assert "packet:nic1" in text and "packet:nic0" not in text
    assert text.count("  link ") == 1 and "ESTABLISHED 10.0.0.1:50001 10.0.1.10:50000" in text
    assert "tx_bytes" not in text and "tx_bytes" in CliRunner().invoke(stat).stdout
    said = CliRunner().invoke(stat, ["--peer", "10.9.9.9", "--by-peer"]).stdout
    assert said.startswith("no process with HARP has such a flow here (looked in ")


def test_stat_sums_by_peer(flows_of_two_nics: None) -> None:
    (first, *rest) = json.loads(CliRunner().invoke(stat, ["--by-peer", "--json"]).stdout)["peers"]
    assert first == {
        "peer": "10.0.0.2",
        "flows": 2,
        "bytes_out": 101,
        "bytes_in": 202,
        "retransmits": 303,
        "ack_wait_ms": 404,
        "window_wait_ms": 505,
        "device_wait_ms": 606,
        "receive_wait_ms": 707,
        "rtt_us": 800,
        "min_rtt_us": 9,
        "send_p99": 2**21 / 1e9,
        "receive_p99": 2**21 / 1e9,
    }
    assert [(one["peer"], one["bytes_out"], one["send_p99"]) for one in rest] == [
        ("10.0.0.3", 10, None),
        ("10.0.1.10", 1000, None),
    ]
    text = CliRunner().invoke(stat, ["--by-peer", "--port", "7"]).stdout.splitlines()
    assert [line.split() for line in text[1:]] == [
        ["10.0.0.2", "1", "1", "2", "3", "0.008", "0.009", "4", "5", "6", "7", "2.1", "-"],
        ["10.0.0.3", "1", "10", "20", "30", "0.08", "0.09", "40", "50", "60", "70", "-", "2.1"],
    ]


def test_sums_by_peer_have_no_bound_of_peers(folders: Path) -> None:
    file = _engine.StatFile()
    for number in range(flow_sums.PEERS_MOST + 1):
        file.flow(number, state=1, peer_address=ip(f"10.0.0.{number + 2}"), peer_port=7)
    found = flow_sums.of_open_flows([statfile.read(Path(file.path))])
    file.close()
    assert len(found) == flow_sums.PEERS_MOST + 1 and flow_sums.OTHER not in found


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--peer", "10.0.0"], "'10.0.0' is neither an IPv4 address nor a prefix"),
        (["--peer", "10.0.0.1/33"], "neither an IPv4 address nor a prefix"),
        (["--port", "0"], "--port"),
        (["--state", "OPEN"], "'OPEN' is not one of"),
        (["--by-peer", "--trace", "/absent"], "--flow selects those of --trace"),
        (["--port", "7", "--prometheus"], "select by the labels"),
        (["--by-peer", "--explain"], "show flows alone"),
    ],
)
def test_stat_refuses_wrong_selection(folders: Path, args: list[str], said: str) -> None:
    done = CliRunner().invoke(stat, args)
    assert done.exit_code == 2 and said in done.output


def test_stat_watches(harp: Any, published: Any) -> None:
    text = harp("stat", "--watch", "0.1", "--count", "3").stdout
    assert len(re.findall(r"tx_bytes +1500 ", text)) == 3
    assert "--count needs --watch" in harp("stat", "-n", "2", code=2).stderr
    assert "give one" in harp("stat", "--watch", "1", "--trace", "/absent", code=2).stderr


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
