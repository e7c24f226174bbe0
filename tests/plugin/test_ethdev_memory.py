# SPDX-License-Identifier: Apache-2.0
"""Two ranks over DPDK: whose memory is sent, and what memory DPDK takes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pairs import rank_at
from plugin_peer import Peer, PeerFailure, end_all

from harp import paths, statfile

COUNT, SIZE = 30, 1_000_003
PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
PAGES_MIB = 320

Start = Callable[..., "tuple[Peer, Peer]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A rank with vhost, which can refer, and one with virtio_user, which cannot."""
    ranks: list[Peer] = []

    def make(more: str = "", faults: str = "") -> tuple[Peer, Peer]:
        behind = f"fault:{faults}|" if faults else ""
        devices = (
            f"{behind}dpdk:net_vhost0,iface={tmp_path}/v,tso=1",
            f"dpdk:virtio_user0,path={tmp_path}/v,queue_size=1024,mrg_rxbuf=1",
        )
        for number, device in enumerate(devices):
            keys = f"device = {device}\naddress = 10.9.0.{number + 1}/24\n{more}"
            ranks.append(rank_at(tmp_path / str(number), keys))
        return ranks[0], ranks[1]

    try:
        yield make
    finally:
        end_all(ranks)


def published(folder: Path) -> statfile.Process:
    (process,) = statfile.scan([folder])
    return process


def stream(sender: Peer, receiver: Peer) -> None:
    """COUNT messages of SIZE bytes, every byte checked."""
    listening = receiver.listen()
    sends = sender.connect(handle=listening["handle"])["comm"]
    receives = receiver.accept(listener=listening["listener"])["comm"]
    job = {"count": COUNT, "size": SIZE, "seed": 7, "outstanding": 8}
    sending = sender.start("stream", comm=sends, sends=True, **job)
    receiving = receiver.start("stream", comm=receives, sends=False, **job)
    for outcome in (sending.result(timeout=60), receiving.result(timeout=60)):
        assert (outcome["done"], outcome["wrong"], outcome["error"]) == (COUNT, 0, None)


def counts(folder: Path) -> dict[str, int]:
    """Once the port has added up all that was sent."""
    deadline = time.monotonic() + 10
    while True:
        (found,) = published(folder).instances
        told = found["tx_copied_bytes"] + found["tx_ref_bytes"]
        if told >= COUNT * SIZE or time.monotonic() > deadline:
            return dict(found)
        time.sleep(0.05)


def of_dpdk(rank: Peer) -> list[str]:
    """The names of DPDK's threads in it."""
    tasks = Path(f"/proc/{rank.process.pid}/task").iterdir()
    names = [(task / "comm").read_text().strip() for task in tasks]
    return [name for name in names if name.startswith(("eal", "vhost"))]


def test_dpdk_starts_with_its_first_device(start: Start) -> None:
    """Loading the file costs no thread of DPDK's."""
    rank = Peer([], {})
    try:
        rank.open(path=str(paths.nccl_plugin_path()), api=12)
        assert not of_dpdk(rank)
    finally:
        rank.end()
    assert of_dpdk(start()[0])


def test_who_copies(start: Start, tmp_path: Path) -> None:
    """vhost reads the application's memory: not a byte is copied, and all are referred to, those
    sent twice counted twice. virtio_user copies every byte."""
    vhost, virtio = start()
    stream(vhost, virtio)
    stream(virtio, vhost)
    one, other = counts(tmp_path / "0"), counts(tmp_path / "1")
    assert one["tx_copied_bytes"] == 0
    payload = COUNT * SIZE
    assert payload <= one["tx_ref_bytes"] <= payload + one["tcp_retransmit_bytes"]
    assert other["tx_ref_bytes"] == 0
    assert other["tx_copied_bytes"] >= payload


def test_frames_are_lost(start: Start, tmp_path: Path) -> None:
    """What is sent again is read from the application's memory again."""
    vhost, virtio = start(faults="drop=0.01,seed=3")
    stream(vhost, virtio)
    one = counts(tmp_path / "0")
    assert one["tcp_retransmits"] > 0 and one["tx_copied_bytes"] == 0


@pytest.fixture
def hugepages() -> Iterator[None]:
    """Some pages of 2 MiB, for as long as the test."""
    before = int(PAGES.read_text()) if PAGES.exists() else 0
    wanted = before + PAGES_MIB // 2
    try:
        PAGES.write_text(str(wanted))
        if int(PAGES.read_text()) < wanted:
            pytest.skip("this machine has no memory for hugepages in one piece")
        yield
    except OSError as refused:
        pytest.skip(f"no hugepages can be set aside here: {refused}")
    finally:
        if PAGES.exists():
            PAGES.write_text(str(before))


def test_without_hugepages(start: Start, tmp_path: Path) -> None:
    if int((PAGES.parent / "free_hugepages").read_text()):
        pytest.skip("this machine has hugepages")
    stream(*start())
    assert "no hugepages" in published(tmp_path / "0").about


@pytest.mark.skipif(
    not os.environ.get("HARP_TEST_ALONE"),
    reason="hugepages are for all: tools/test runs it when nothing else does (HARP_TEST_ALONE=1)",
)
@pytest.mark.parametrize("more", ["", "hugepages = 100\n"])
def test_with_hugepages(start: Start, tmp_path: Path, hugepages: None, more: str) -> None:
    stream(*start(more))
    for folder in ("0", "1"):
        assert "hugepages of 2 MiB" in published(tmp_path / folder).about


def test_hugepages_that_are_not_there(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PeerFailure):
        start("hugepages = 1000000\n")
    (line,) = (line for line in capfd.readouterr().err.splitlines() if "hugepages" in line)
    assert "hugepages = 1000000 asks for more than the" in line and "leave it out" in line
    assert "NCCL goes on without HARP" in line
