# SPDX-License-Identifier: Apache-2.0
"""Measurements: medians, pairs, targets, documents, and runs of `harp perf` on hosts."""

import json
import math
import time
from pathlib import Path
from typing import Optional

import pytest
from click.testing import CliRunner

from tools.hosts.lab import Lab
from tools.measure import bench, flood
from tools.measure.raw import run_raw_shared
from tools.measure.records import (
    FIELDS,
    Document,
    RecordError,
    load_records,
    make_record,
    unwritable,
)
from tools.measure.runner import (
    HarpPacket,
    KernelTcp,
    RunError,
    Sizes,
    Task,
    Transport,
    run_perf,
)
from tools.measure.shared import DIRECTIONS, SHARED, HarpEthdev, SharedLink
from tools.measure.stats import largest, ratios, summarize
from tools.measure.tables import markdown, size_text


def test_summary_is_median_and_range() -> None:
    assert summarize([3, 1, 100]).text(0) == "3 (1–100)"
    with pytest.raises(ValueError, match="no figures"):
        summarize([])


def test_largest_keeps_what_is_not_finite() -> None:
    assert largest([1e-9, 3e-9, 2e-9]) == 3e-9
    for bad in (math.nan, math.inf, -math.inf):
        assert largest([1e-9, bad, 2e-9]) == math.inf  # max() drops a NaN in this place


def test_ratios_are_computed_per_pair() -> None:
    """A machine that becomes ten times slower affects both sides of a pair."""
    assert ratios([6, 0.6], [10, 1]).low == pytest.approx(0.6)
    assert ratios([6, 0.6], [10, 1]).high == pytest.approx(0.6)
    with pytest.raises(ValueError, match="no pairs"):
        ratios([1], [1, 2])


def test_sizes_are_formatted() -> None:
    assert [size_text(n) for n in (8, 1024, 1536, 1 << 20, 3 << 30)] == [
        "8 B",
        "1 KiB",
        "1536 B",
        "1 MiB",
        "3 GiB",
    ]


def test_table_columns_are_aligned() -> None:
    lines = markdown(["a", "bb"], [["x", "1"], ["long", "100"]], [1]).splitlines()
    assert lines == ["| a    |  bb |", "| ---- | --: |", "| x    |   1 |", "| long | 100 |"]


def test_a_document_is_read_back(tmp_path: Path) -> None:
    record = make_record(wire="veth-1500", algbw_gbs=1.5)
    Document(records=[record], extra={"checks": []}).save(tmp_path / "out.json")
    assert load_records(tmp_path / "out.json") == [record]
    assert tuple(record) == FIELDS and record["wrong"] is None
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["schema"] == "harp.perf/1" and document["host"]["processors"] > 0


def test_invalid_documents_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text('{"schema": "other/1", "records": []}')
    with pytest.raises(RecordError, match="its schema is not"):
        load_records(tmp_path / "other")
    (tmp_path / "half").write_text('{"schema": "har')
    with pytest.raises(RecordError, match="half"):
        load_records(tmp_path / "half")
    with pytest.raises(RecordError, match="speed"):
        make_record(speed=1)


def test_harp_perf_runs_on_four_hosts() -> None:
    with Lab(4) as lab:
        records = run_perf(lab, Task("all_reduce", Sizes(8, 512, 8), 3, 1), KernelTcp(nsocks=2))
    assert [record["size"] for record in records] == [8, 64, 512]
    for record in records:
        assert record["wrong"] == 0 and record["nranks"] == 4 and record["nsocks"] == 2
        assert record["wire"] == "veth-1500-bridge" and record["transport"] == "kernel-tcp"
        assert set(FIELDS) <= set(record)


def test_wrong_bytes_are_recorded() -> None:
    with Lab() as lab:
        task = Task("sendrecv", Sizes(64, 64), 3, 1, inject_wrong=True)
        records = run_perf(lab, task, KernelTcp())
    assert records[0]["wrong"] > 0


def test_failed_run_reports_rank_output() -> None:
    with Lab() as lab:
        with pytest.raises(RunError, match=r"(?s)sendrecv over .*rank . ended with .*-- rank 0"):
            run_perf(lab, Task("sendrecv", Sizes(8, 8), 1, 0), KernelTcp(cc="no-such-thing"))
        start = time.monotonic()
        with pytest.raises(RunError, match="not done within 1 s"):
            run_perf(
                lab, Task("sendrecv", Sizes(1 << 20, 1 << 20), 1000000, 0, limit_s=1), KernelTcp()
            )
        assert time.monotonic() - start < 20  # all its messages would take minutes


def test_host_configuration_is_written(tmp_path: Path) -> None:
    host = Lab().hosts[1]
    settings = (("instances", "2"),)
    variables = HarpPacket(own_address=True, settings=settings).environment(host, tmp_path)
    text = (Path(variables["HARP_CONF_DIR"]) / "ztcp0.conf").read_text()
    assert text == "device = packet:eth0\naddress = 10.77.0.102/24\ninstances = 2\n"


@pytest.mark.parametrize(
    "transport, flows",
    [
        (HarpPacket(settings=(("instances", "1"),)), 1),
        (HarpPacket(settings=(("instances", "2"),)), 2),
        (HarpPacket(settings=(("flows", "3"),)), 3),
        (HarpPacket(settings=(("flows", "3"),), flows=2), 2),
        (KernelTcp(), None),
    ],
    ids=["one instance", "two instances", "file", "told", "kernel"],
)
def test_record_reports_effective_flows(transport: Transport, flows: Optional[int]) -> None:
    with Lab() as lab:
        (record,) = run_perf(lab, Task("sendrecv", Sizes(8, 8), 1, 0), transport)
    assert record["flows"] == flows


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("link", SHARED.values(), ids=SHARED)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_all_reduce_over_shared_memory(link: SharedLink, direction: str) -> None:
    task = Task("all_reduce", Sizes(8, 1 << 20, 64), iterations=3, warmup=1)
    with Lab(2, link.beside) as lab:
        records = run_perf(lab, task, HarpEthdev(link, direction))
    assert [record["wrong"] for record in records] == [0, 0, 0]
    for record in records:
        assert (record["wire"], record["mtu"]) == (link.name, link.mtu)
        assert (record["direction"], record["transport"]) == (direction, "harp-ethdev")


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_raw_throughput_over_shared_memory(direction: str) -> None:
    with Lab(2, "veth-1500") as lab:
        record = run_raw_shared(lab, SHARED["vhost-tso"], direction, True, 0.3, 7)
    assert record["algbw_gbs"] > 0
    assert (record["wire"], record["pair"], record["copy"]) == ("vhost-tso", 7, True)


def test_json_file_is_checked_before_measurement(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "out.json"
    for command in (bench.main, flood.main):
        done = CliRunner().invoke(command, ["--json", str(path)])
        assert done.exit_code == 2 and f"{path}: " in done.output
    assert unwritable(path) == f"{path}: there is no folder {path.parent}"
    path.parent.mkdir()
    assert unwritable(path) is None and not path.exists()
    assert unwritable(path.parent) == f"{path.parent}: it is a folder"
    assert unwritable(Path("/proc/version/out.json")) == (
        "/proc/version/out.json: there is no folder /proc/version"
    )
    assert unwritable(Path("/proc/sys/out.json")) == "/proc/sys/out.json: it cannot be written"
