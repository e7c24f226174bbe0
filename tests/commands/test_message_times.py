# SPDX-License-Identifier: Apache-2.0
"""Message times: what flows publish is what stat, top and the metrics show."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harp.cli.top import line, rates
from harp.observe import message_times, metrics, statfile
from harp.observe.flow_sums import Readings
from harp.testing import _engine

SENDS_NS = [0, 1023, 1024, 3000, 5000, 10**6, 10**12]


@pytest.fixture
def file(folders: Path) -> Iterator[Any]:
    file = _engine.StatFile()
    publish(file, SENDS_NS, [2000])
    yield file
    file.close()


def publish(file: Any, sends: list[int], receives: list[int]) -> None:
    peer = {"state": 1, "peer_address": 0x0200000A, "local_port": 7}
    file.flow(0, **peer, direction="S", flow=0, message_times_ns=sends)
    file.flow(1, **peer, direction="R", flow=1, message_times_ns=receives)


def only(folders: Path) -> statfile.Process:
    (process,) = statfile.scan([folders / "run"])
    return process


def samples(process: statfile.Process, readings: Readings) -> dict[tuple[str, str, str], float]:
    (family,) = [
        one for one in metrics.families([process], readings) if one.name == "harp_message_seconds"
    ]
    return {(name, of["operation"], of.get("le", "")): value for name, of, value in family.samples}


def test_times_are_read_back_in_buckets_of_powers_of_two(file: Any, folders: Path) -> None:
    send, receive = only(folders).flows
    assert send.message_time_ns == sum(SENDS_NS)
    expected = [0] * message_times.BUCKETS
    for ns in SENDS_NS:
        bound = [message_times.bound_s(i) * 1e9 for i in range(message_times.BUCKETS)]
        expected[next(i for i, most in enumerate(bound) if ns < most)] += 1
    assert list(send.message_times) == expected and expected[0] == 2 and expected[-1] == 1
    assert sum(receive.message_times) == 1


def test_metrics_are_cumulative_histograms_by_operation(file: Any, folders: Path) -> None:
    readings = Readings()
    found = samples(only(folders), readings)
    assert found["harp_message_seconds_bucket", "send", "4.096e-06"] == 4
    assert found["harp_message_seconds_bucket", "send", "+Inf"] == len(SENDS_NS)
    assert found["harp_message_seconds_count", "send", ""] == len(SENDS_NS)
    assert math.isclose(found["harp_message_seconds_sum", "send", ""], sum(SENDS_NS) / 1e9)
    assert found["harp_message_seconds_count", "receive", ""] == 1
    publish(file, [*SENDS_NS, 5000], [2000])
    assert samples(only(folders), readings)["harp_message_seconds_count", "send", ""] == 8
    file.flow(0)  # the flow has closed: its messages stay
    assert samples(only(folders), readings)["harp_message_seconds_count", "send", ""] == 8


def test_messages_count_from_the_first_reading_with_a_direction(file: Any, folders: Path) -> None:
    """A flow has no direction before its first message."""
    readings = Readings()
    idle = replace(only(folders).flows[0], direction="")
    samples(replace(only(folders), flows=[idle]), readings)
    assert samples(only(folders), readings)["harp_message_seconds_count", "send", ""] == 7


def test_stat_and_top_show_percentiles(file: Any, folders: Path, harp: Any) -> None:
    assert "messages:7 message_p50:0.0041ms" in harp("stat").stdout
    (process,) = json.loads(harp("stat", "--json").stdout)["processes"]
    assert sum(process["flows"][0]["message_times"]) == 7
    before = only(folders)
    publish(file, [*SENDS_NS, *[10**6] * 99], [2000])
    found = rates(before, only(folders), 1.0)
    assert found.send_p99 == 1024 * 1024 / 1e9 and found.receive_p99 is None


def test_times_beyond_the_last_bound_are_shown_as_such(file: Any, folders: Path, harp: Any) -> None:
    """A message of 1000 s did not take less than 4.3 s."""
    publish(file, [10**12] * 5, [2000])
    assert "message_p50:>4295ms message_p99:>4295ms" in harp("stat").stdout
    (row,) = json.loads(harp("stat", "--by-peer", "--json").stdout)["peers"]
    assert row["send_p99"] is None and row["receive_p99"] is not None
    assert harp("stat", "--by-peer").stdout.split()[-2] == ">4295"
    before = replace(only(folders), flows=[])
    assert ">4295" in line(rates(before, only(folders), 1.0))


def test_older_file_has_no_times(file: Any, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entries end before the histogram."""
    monkeypatch.setattr(statfile, "_flow", lambda entry, read=statfile._flow: read(entry[:128]))
    process = only(folders)
    assert [one.message_times for one in process.flows] == [(), ()]
    family = [
        one for one in metrics.families([process], Readings()) if one.name == "harp_message_seconds"
    ]
    assert family[0].samples == []
    assert rates(process, process, 1.0).send_p99 is None
