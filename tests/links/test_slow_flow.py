# SPDX-License-Identifier: Apache-2.0
"""A slow flow costs its link at most its own share: the other flows keep their rates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.hosts.jobs import job
from tools.hosts.ranks import wire_path, wire_site

FLOWS, TRIES = 4, 3
FLOW_MBPS = 100  # of each flow; four flows are well below the speed of a busy machine
WORDS = ["sendrecv", "-b", "1M", "-e", "1M", "-n", "50", "-w", "8", "--outstanding", "8"]


def rate(folder: Path, capped: bool) -> float:
    """The GB/s of a link of four flows, each with its own rate limit; capped: one at a tenth."""
    path = wire_path()
    control = folder / "faults"
    folder.mkdir()
    control.write_text(f"rate_mbps={FLOW_MBPS // 10}" if capped else "")
    faults = "|fault:".join(
        f"tso=1,rate_mbps={FLOW_MBPS},flow={number}" + (f",control={control}" * (number == 1))
        for number in range(FLOWS)
    )
    sites = [
        wire_site(folder / "0", path, 1, device=f"fault:{faults}|wire:{path}", flows=FLOWS),
        wire_site(folder / "1", path, 2, flows=FLOWS),
    ]
    report = folder / "report.json"
    with job(sites, "127.0.0.1", [*WORDS, "--json", report], flowing=0) as running:
        running.ends_well()
    (record,) = json.loads(report.read_text())["records"]
    return float(record["algbw_gbs"])


@pytest.mark.slow
def test_capped_flow_does_not_slow_other_flows(tmp_path: Path) -> None:
    """On a busy machine a stall may cost a rate, so the test tries several times."""
    line = FLOWS * FLOW_MBPS / 8e3
    told = []
    for number in range(TRIES):
        whole = rate(tmp_path / f"whole{number}", capped=False)
        capped = rate(tmp_path / f"capped{number}", capped=True)
        told.append(f"{whole:.4f} GB/s, with one flow at a tenth {capped:.4f}")
        assert whole < 1.05 * line, "the flows do not limit the link"
        if whole > 0.7 * line and capped >= 0.8 * 0.75 * whole:
            return
    pytest.fail(f"the link has {line} GB/s, and its messages: {told}")
