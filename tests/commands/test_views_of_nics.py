# SPDX-License-Identifier: Apache-2.0
"""The views of two ranks with two NICs each: every one names the NIC."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from ranks import Failed, Link, Rank, connect, wait_until
from scapy.all import IP, PcapReader

from harp.observe import trace
from tools.hosts.lab import Lab
from tools.hosts.rails import Rails, add_rails

NICS = ["packet:nic0", "packet:nic1"]
BYTES = 8 * 65536  # of Link.move


@pytest.fixture(scope="module")
def rails(lab: Lab) -> Rails:
    return add_rails(lab, 2)


@pytest.fixture
def links(
    rails: Rails, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Link, Link]]:
    """Two links between the same ranks, one over each rail. The sender's files are those that the
    commands see."""
    sites = [
        rails.site(folders / str(host.index), host, timeout_ms=2000) for host in rails.lab.hosts
    ]
    monkeypatch.setenv("HARP_RUN_DIR", str(sites[0].run_folder))
    for name, value in {"SLURM_JOB_ID": "train", "RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with ExitStack() as stack:
        sender, receiver = [stack.enter_context(Rank(site)).init(devices=2) for site in sites]
        yield (
            connect(sender, receiver, devices=(0, 0)),
            connect(sender, receiver, devices=(1, 1)),
        )


@pytest.mark.quick_cases(1)
def test_views_name_each_nic(harp: Any, rails: Rails, links: tuple[Link, Link]) -> None:
    for link in links:
        link.move()

    def published() -> list[dict[str, Any]]:
        rows = json.loads(harp("stat", "--json").stdout)["processes"]
        shown = all(
            row["flows"] and row["totals"]["links"] and row["totals"]["tx_bytes"] > BYTES
            for row in rows
        )
        return rows if len(rows) == 2 and shown else []

    rows = wait_until(published, 10, "a NIC is missing")
    assert [row["device"] for row in rows] == NICS
    assert len({row["process_id"] for row in rows}) == 1
    assert {(row["job"], row["world_size"]) for row in rows} == {("train", 2)}
    for number, row in enumerate(rows):
        peer = rails.address(rails.lab.hosts[1], number)
        assert {flow["peer"].partition(":")[0] for flow in row["flows"]} == {peer}
        assert row["totals"]["links"] == 1 and row["totals"]["messages_out"] == 8
    text = harp("stat").stdout
    assert text.count(" pid ") == 1 and ", 2 NICs\n" in text
    assert re.search(r"messages_out +16  \(8 \+ 8\)\n", text)
    for nic in NICS:
        assert re.search(rf"link \d+ flow 0 S ESTABLISHED \S+ \S+ {nic}\n", text)
        assert f'device="{nic}"' in harp("stat", "--prometheus").stdout
    view = json.loads(harp("top", "-n", "1", "-d", "0.2", "--json").stdout)["processes"]
    assert [row["device"] for row in view] == NICS
    assert re.search(r"nic1 +train +1 ", harp("top", "-n", "1", "-d", "0.2").stdout)
    for name, count in (("train", 2), ("other", 0)):
        shown = harp("top", "-n", "1", "-d", "0.2", "--json", "--job", name).stdout
        assert len(json.loads(shown)["processes"]) == count
    (sums,) = json.loads(harp("stat", "--json", "--by-peer", "--job", "train").stdout)["peers"][:1]
    assert sums["flows"] == 1
    assert "no process with job other" in harp("stat", "--job", "other", code=1).stderr
    lines = "\n".join(links[0].sender.lines())
    for device, nic in enumerate(NICS):
        assert f"device {device}: {nic}: " in lines
    assert "drives 2 of the host's 2 NICs, its home is device " in lines


@pytest.mark.slow
def test_capture_takes_frames_of_named_nic(
    harp: Any, rails: Rails, links: tuple[Link, Link], folders: Path
) -> None:
    host, path = rails.lab.hosts[0], folders / "nic1.pcapng"
    refused = harp("capture", "-w", str(path), code=2).stderr
    assert "the process uses several NICs; name one of" in refused
    assert all(f"--device {nic} " in refused for nic in NICS)
    args = ["capture", "-w", str(path), "--device", "nic1", "--seconds", "20", "-c", "2000"]
    process = host.popen([sys.executable, "-m", "harp", *args])
    while process.poll() is None:
        for link in links:
            link.move()
    assert process.returncode == 0
    with PcapReader(str(path)) as frames:
        seen = {address for frame in frames for address in (frame[IP].src, frame[IP].dst)}
    assert seen == {rails.address(one, 1) for one in rails.lab.hosts}


def test_each_nic_writes_trace(links: tuple[Link, Link]) -> None:
    for link in links:
        link.move()
    sender = links[0].sender
    links[0].receiver.process.kill()
    for link in links:
        with pytest.raises(Failed):
            link.sender.do("send", link.sends, 8, 65536, 10000)
    folder = sender.site.run_folder
    paths = wait_until(
        lambda: found if len(found := list(folder.glob("*.trace"))) == 2 else [],
        10,
        "a trace is missing",
    )
    sender.do("finalize")  # logs what is queued
    found = {trace.read(path).device: str(path) for path in paths}
    assert sorted(found) == NICS
    lines = "\n".join(sender.lines())
    for nic in NICS:
        assert f"the last events of {nic} are in {found[nic]}; " in lines
