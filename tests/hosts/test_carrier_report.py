# SPDX-License-Identifier: Apache-2.0
"""A NIC loses its carrier and gets it back: log, counter and trace tell of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ranks import START_S, Failed, Rank, connect, packet_site, wait_until
from switched import switched, without_carrier

from harp.observe import trace
from tools.hosts.lab import Lab

__all__ = ["switched"]

TIMEOUT_MS = 1500
NOTICE_S = 20.0  # seconds for the kernel and HARP to notice a carrier on a busy machine
LOST = re.compile(
    r"HARP: the device packet:\S+ has lost its carrier at \d\d:\d\d:\d\d UTC\. Links use another "
    rf"NIC, or wait until it is back, at most timeout_ms \({TIMEOUT_MS}\); check the cable and the "
    r"switch\.$"
)
BACK = re.compile(r"HARP: the device packet:\S+ is back after \d+\.\d s\. Links use it again\.$")


def losses(rank: Rank) -> int:
    return sum(one.totals["port_carrier_losses"] for one in rank.site.published())


@pytest.mark.slow
@pytest.mark.sanitized
def test_carrier_loss_and_return_are_logged_counted_and_traced(
    switched: Lab, tmp_path: Path
) -> None:
    sites = [
        packet_site(tmp_path / str(host.index), host, timeout_ms=TIMEOUT_MS)
        for host in switched.hosts
    ]
    with Rank(sites[0]) as one, Rank(sites[1]) as other:
        one.init()
        other.init()
        link = connect(other, one)
        link.move()
        with without_carrier(switched, switched.hosts[0]):
            wait_until(lambda: losses(one) == 1, NOTICE_S, "no loss is counted", [one])
        switched.await_links()

        def said(text: re.Pattern[str]) -> list[str]:
            link.move(1, 64)  # a rank prints the lines when it next calls HARP
            return [line for line in one.lines() if text.search(line)]

        wait_until(lambda: said(BACK), NOTICE_S, "no line tells that it is back", [one])
        assert [LOST.search(line) is not None for line in one.warnings] == [True], one.lines()
        assert len(said(BACK)) == 1 and other.warnings == []

        one.start("receive", link.receives, 1, 64, 60_000)
        with without_carrier(switched, switched.hosts[0]):
            with pytest.raises(Failed):
                one.finish(START_S)
            path = wait_until(lambda: list(sites[0].run_folder.glob("*.trace")), 10, "no trace")[0]
        assert losses(one) == 2 and losses(other) == 0
    records = [
        record
        for record in trace.read(path).records
        if record.event in ("carrier_lost", "port_back", "port_error")
    ]
    assert [record.event for record in records] == ["carrier_lost", "port_back", "carrier_lost"]
    outage_ms = (records[1].time_ns - records[0].time_ns) / 1e6
    assert outage_ms - 1 < float(records[1].values["outage_ms"]) <= outage_ms + 1
