# SPDX-License-Identifier: Apache-2.0
"""iperf3 between two hosts of a lab: a well-known reference."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, Sequence, Tuple

from tools.hosts.lab import Host, Lab, LabError
from tools.measure.records import Record, make_record

PORT = 5201


def busy_seconds() -> Tuple[float, float]:
    """The busy time and the total time of this machine's cores since its start, in seconds."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    tick = os.sysconf("SC_CLK_TCK")
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / tick, sum(fields) / tick


def idle_load(seconds: float = 0.5) -> float:
    """The fraction of the cores' time that other work takes now."""
    before = busy_seconds()
    time.sleep(seconds)
    after = busy_seconds()
    return (after[0] - before[0]) / max(after[1] - before[1], 1e-9)


def serve(host: Host) -> "subprocess.Popen[str]":
    """Starts a server for one run of iperf3. The lab ends it at the latest when it closes. Raises
    LabError if it does not listen."""
    args = ["iperf3", "-s", "-1", "-p", PORT, "--forceflush"]
    server = host.popen(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert server.stdout
    first = [server.stdout.readline() for _ in range(2)]
    if "listening" not in first[1]:
        raise LabError(f"{' '.join(map(str, args))} does not listen: {''.join(first).strip()}")
    return server


def send(lab: Lab, options: Sequence[object], limit_s: float) -> Dict[str, Any]:
    """Runs iperf3 from host 0 to the server on host 1. options: of the client. Returns the part
    `end` of its JSON document. Raises LabError if it fails, or takes longer than limit_s
    seconds."""
    sender, receiver = lab.hosts[:2]
    args = ["iperf3", "-J", "-c", receiver.address, "-p", PORT, *options]
    result = json.loads(sender.run(args, timeout=limit_s).stdout)
    if "error" in result:
        raise LabError(f"iperf3 from host 0 to host 1: {result['error']}")
    end: Dict[str, Any] = result["end"]
    return end


def run_iperf(lab: Lab, seconds: float, load: float, pair: int) -> Record:
    """Measures one TCP connection with cubic from host 0 to host 1. load: the result of idle_load,
    subtracted from the CPU time. Raises LabError if iperf3 fails."""
    server = serve(lab.hosts[1])
    before = busy_seconds()
    received = send(lab, ["-t", seconds, "-C", "cubic"], seconds + 20)["sum_received"]
    after = busy_seconds()
    server.wait(10)
    rate = received["bits_per_second"] / 8e9
    busy = (after[0] - before[0]) - load * (after[1] - before[1])
    return make_record(
        wire=lab.wire.name,
        transport="iperf3",
        op="sendrecv",
        direction="0->1",
        nranks=2,
        flows=1,
        mtu=lab.wire.mtu,
        offloads="all" if lab.wire.offloads else "none",
        pair=pair,
        kernel_cc="cubic",
        algbw_gbs=rate,
        busbw_gbs=rate,
        cpu_s_per_gb=max(busy, 0) / (received["bytes"] / 1e9),
    )
