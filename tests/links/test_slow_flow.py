# SPDX-License-Identifier: Apache-2.0
"""A slow flow costs its link at most its own share: the other flows keep their rates."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tools.hosts.jobs import job
from tools.hosts.ranks import wire_path, wire_site

FLOWS = 4
FLOW_MBPS = (100, 50, 25)  # of each flow: four flows must be well below the machine's speed
ARGS = ["sendrecv", "-b", "1M", "-e", "1M", "-n", "50", "-w", "8", "--outstanding", "8"]


def rate(folder: Path, mbps: int, capped: bool) -> float:
    """The GB/s of a link of four flows, each with this limit of its rate; capped: one at a tenth of
    it."""
    path = wire_path()
    control = folder / "faults"
    folder.mkdir()
    control.write_text(f"rate_mbps={mbps // 10}" if capped else "")
    faults = "|fault:".join(
        f"tso=1,rate_mbps={mbps},flow={number}" + (f",control={control}" * (number == 1))
        for number in range(FLOWS)
    )
    sites = [
        wire_site(folder / "0", path, 1, device=f"fault:{faults}|wire:{path}", flows=FLOWS),
        wire_site(folder / "1", path, 2, flows=FLOWS),
    ]
    report = folder / "report.json"
    with job(sites, "127.0.0.1", [*ARGS, "--json", report], flowing=0) as running:
        running.ends_well()
    (record,) = json.loads(report.read_text())["records"]
    return float(record["algbw_gbs"])


@pytest.mark.slow
def test_capped_flow_does_not_slow_other_flows(tmp_path: Path) -> None:
    """The test tries lower rates on a machine that is too busy for the first ones. A chunk on the
    slow flow lasts long then, so the bound is lower. Equal shares would leave a tenth."""
    least = 0.45 if os.getloadavg()[0] > (os.cpu_count() or 1) else 0.8 * 0.75
    told = []
    for mbps in FLOW_MBPS:
        line = FLOWS * mbps / 8e3
        whole = rate(tmp_path / f"w{mbps}", mbps, capped=False)
        capped = rate(tmp_path / f"c{mbps}", mbps, capped=True)
        told.append(f"limit {line} GB/s: {whole:.4f}, with one flow at a tenth {capped:.4f}")
        if 0.7 * line < whole < 1.05 * line and capped >= least * whole:
            return
    pytest.fail(f"the flows do not limit the link, or the slow one does: {told}")
