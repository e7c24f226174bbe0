# SPDX-License-Identifier: Apache-2.0
"""Two ranks over DPDK: sends from application memory, and the memory that DPDK takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pairs import rank_at
from plugin_peer import Peer, PeerFailure, end_all

from harp import paths
from harp.observe import statfile
from tools.hosts.jobs import all_reduce, job
from tools.hosts.ranks import ethdev_devices, ethdev_site

COUNT, SIZE = 30, 1_000_003
PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
PAGES_MIB = 320

Start = Callable[..., "tuple[Peer, Peer]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start(...): a rank with vhost, which can refer to application memory, and a rank with
    virtio_user, which cannot."""
    ranks: list[Peer] = []

    def make(more: str = "", faults: str = "", options: str = "") -> tuple[Peer, Peer]:
        behind = f"fault:{faults}|" if faults else ""
        vhost, virtio = ethdev_devices(tmp_path / "v")
        for number, device in enumerate((f"{behind}{vhost}{options}", f"{virtio}{options}")):
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


def link(sender: Peer, receiver: Peer) -> tuple[int, int]:
    """Connects two ranks. Returns the sending and the receiving comm."""
    listening = receiver.listen()
    sends = sender.connect(handle=listening["handle"])["comm"]
    return sends, receiver.accept(listener=listening["listener"])["comm"]


def stream(sender: Peer, receiver: Peer, size: int = SIZE) -> None:
    """Sends COUNT messages and checks every byte."""
    sends, receives = link(sender, receiver)
    job = {"count": COUNT, "size": size, "seed": 7, "outstanding": 8}
    sending = sender.start("stream", comm=sends, sends=True, **job)
    receiving = receiver.start("stream", comm=receives, sends=False, **job)
    for outcome in (sending.result(timeout=60), receiving.result(timeout=60)):
        assert (outcome["done"], outcome["wrong"], outcome["error"]) == (COUNT, 0, None)


def counts(folder: Path, least: int = COUNT * SIZE) -> dict[str, int]:
    """The counters, once the port has counted at least `least` sent bytes."""
    deadline = time.monotonic() + 10
    while True:
        (found,) = published(folder).instances
        told = found["tx_copied_bytes"] + found["tx_zero_copy_bytes"]
        if told >= least or time.monotonic() > deadline:
            return dict(found)
        time.sleep(0.05)


def of_dpdk(rank: Peer) -> list[str]:
    """The names of DPDK's threads in a rank."""
    tasks = Path(f"/proc/{rank.process.pid}/task").iterdir()
    names = [(task / "comm").read_text().strip() for task in tasks]
    return [name for name in names if name.startswith(("eal", "vhost"))]


def test_eal_starts_with_first_dpdk_device(start: Start) -> None:
    """Loading the plugin starts no thread of DPDK."""
    rank = Peer([], {})
    try:
        rank.open(path=str(paths.nccl_plugin_path()), api=12)
        assert not of_dpdk(rank)
    finally:
        rank.end()
    assert of_dpdk(start()[0])


def test_vhost_refers_and_virtio_user_copies(start: Start, tmp_path: Path) -> None:
    """vhost reads the application's memory: no byte is copied, and a retransmitted byte counts
    again. virtio_user copies every byte."""
    vhost, virtio = start()
    stream(vhost, virtio)
    stream(virtio, vhost)
    one, other = counts(tmp_path / "0"), counts(tmp_path / "1")
    assert one["tx_copied_bytes"] == 0
    payload = COUNT * SIZE
    assert payload <= one["tx_zero_copy_bytes"] <= payload + one["tcp_retransmit_bytes"]
    assert other["tx_zero_copy_bytes"] == 0
    assert other["tx_copied_bytes"] >= payload


@pytest.mark.slow
def test_all_reduce_over_vhost_copies_nothing(tmp_path: Path) -> None:
    """In a job, the rank with vhost copies nothing."""
    sites = [ethdev_site(tmp_path / str(n), tmp_path / "v", n) for n in (1, 2)]
    with job(sites, "127.0.0.1", all_reduce("1M", 200, 2.0)) as running:
        running.ends_well()
    vhost, virtio = running.seen
    assert vhost["tx_copied_bytes"] == 0 and virtio["tx_zero_copy_bytes"] == 0
    # The port's counts are published every 100 ms, so the last ones may be missing.
    assert 0.7 * vhost["message_bytes_out"] < vhost["tx_zero_copy_bytes"]
    assert 0.7 * virtio["message_bytes_out"] < virtio["tx_copied_bytes"]


def test_retransmission_refers_to_application_memory(start: Start, tmp_path: Path) -> None:
    """A retransmission reads the application's memory again."""
    vhost, virtio = start(faults="drop=0.01,seed=3")
    stream(vhost, virtio)
    one = counts(tmp_path / "0")
    assert one["tcp_retransmits"] > 0 and one["tx_copied_bytes"] == 0


def test_damaged_payload_is_dropped_by_software_checksum(start: Start, tmp_path: Path) -> None:
    """No device computes checksums. HARP verifies the checksum while it copies payload to the
    receive's buffer, and drops damaged payload."""
    nothing = ";tx_checksum=0;rx_checksum=0;tso=0;lro=0"
    vhost, virtio = start(faults="corrupt=0.01,side=rx,seed=5", options=nothing)
    stream(virtio, vhost)
    (one,) = published(tmp_path / "0").instances
    assert one["rx_drop_checksum"] > 50
    assert one["rx_software_checksums"] > 0.3 * COUNT * SIZE / 1448
    assert one["rx_placed"] == 0
    stream(virtio, vhost, 5000)  # more than one in a segment


REGISTRATIONS, MESSAGES = 4000, 100
ODD_SIZE = 40_001  # bytes; HARP copies shorter messages than 32 KiB when it sends them
STEADY_TRIES = 3
LEAST_LEAK = 16  # bytes: malloc's smallest allocation


def register_at_random(sender: Peer, receiver: Peer, comms: tuple[int, int]) -> None:
    """Registers random ranges of memory, sends from them, and checks every byte."""
    sends, receives = comms
    job = {"size": ODD_SIZE, "seed": 11}
    receiving = receiver.start(
        "stream", comm=receives, sends=False, count=MESSAGES, outstanding=4, **job
    )
    registering = sender.start(
        "register_at_random", comm=sends, count=REGISTRATIONS, sends=MESSAGES, **job
    )
    registering.result(timeout=90)
    outcome = receiving.result(timeout=30)
    assert (outcome["done"], outcome["wrong"], outcome["error"]) == (MESSAGES, 0, None)


@pytest.mark.sanitized
@pytest.mark.slow
@pytest.mark.parametrize("regions", [0, 20])
def test_random_registrations_leak_nothing(start: Start, tmp_path: Path, regions: int) -> None:
    """4,000 registrations of random sizes and places, twice. None fails, memory beyond the device's
    budget is copied, and neither memory, mappings nor the budget leak."""
    vhost, virtio = start(options=f";regions={regions}" if regions else "")
    comms = link(vhost, virtio)
    payload = MESSAGES * ODD_SIZE
    register_at_random(vhost, virtio, comms)
    one = counts(tmp_path / "0", payload)
    if regions:
        assert one["tx_copied_bytes"] > 0
    else:
        # A message that meets a change of the table of mappings is copied on purpose.
        assert one["tx_copied_bytes"] < payload // 2
    grown = []
    for _ in range(STEADY_TRIES):  # a busy malloc may take another arena; a leak grows each time
        before = vhost.resources(), vhost.heap()
        register_at_random(vhost, virtio, comms)
        after = vhost.resources(), vhost.heap()
        grown.append((before, after))
        if after[0] == before[0] and after[1] - before[1] < REGISTRATIONS * LEAST_LEAK:
            break
    else:
        pytest.fail(f"it grew each time: {grown}")
    payload *= 1 + len(grown)
    copied = counts(tmp_path / "0", payload)["tx_copied_bytes"]
    stream(vhost, virtio)
    whole = counts(tmp_path / "0", payload + COUNT * SIZE)
    assert whole["tx_copied_bytes"] == copied, "a part of the budget is still in use"
    assert whole["tx_zero_copy_bytes"] >= COUNT * SIZE


@pytest.fixture
def hugepages() -> Iterator[None]:
    """Sets aside hugepages of 2 MiB during the test."""
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


def test_runs_without_hugepages(start: Start, tmp_path: Path) -> None:
    if int((PAGES.parent / "free_hugepages").read_text()):
        pytest.skip("this machine has hugepages")
    stream(*start())
    assert "no hugepages" in published(tmp_path / "0").about


@pytest.mark.alone  # it adds hugepages, which other tests could take
@pytest.mark.parametrize("more", ["", "hugepages = 100\n"])
def test_runs_with_hugepages(start: Start, tmp_path: Path, hugepages: None, more: str) -> None:
    stream(*start(more))
    for folder in ("0", "1"):
        assert "hugepages of 2 MiB" in published(tmp_path / folder).about


def test_too_many_requested_hugepages_decline(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PeerFailure):
        start("hugepages = 1000000\n")
    (line,) = (line for line in capfd.readouterr().err.splitlines() if "hugepages" in line)
    assert "hugepages = 1000000 asks for more than the" in line and "leave it out" in line
    assert "NCCL goes on without HARP" in line
