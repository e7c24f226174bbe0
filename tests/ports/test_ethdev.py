# SPDX-License-Identifier: Apache-2.0
"""dpdk: a virtio_user device and a vhost device, joined by a socket, in two processes."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from port_probe import (
    HEADERS,
    PROBE,
    Frame,
    PortError,
    Probe,
    Received,
    arp_request,
    checksum_ok,
    payload_of,
    sequence_of,
)

A, B = "10.1.0.1", "10.1.0.2"
TX_CHECKSUM, TSO, RX_CHECKSUM, LRO = 1, 2, 4, 8
PLAIN = ";tx_checksum=0;rx_checksum=0"
WAITING = 64  # frames that the port keeps beside the ring
LINK_UP_S = 15.0  # seconds for a device to appear on a busy machine

Make = Callable[..., Probe]


@pytest.fixture(autouse=True, scope="module")
def dpdk() -> None:
    """Skips if the build has no DPDK."""
    one = Probe()
    try:
        with pytest.raises(PortError) as refused:
            one.open("dpdk:", address=f"{A}/24")
    finally:
        one.end()
    if "without DPDK" in str(refused.value):
        pytest.skip(f"{PROBE} was built without DPDK: install libdpdk-dev")


@dataclass
class Link:
    """Two processes: virtio has virtio_user with its buffers in shared memory; vhost reads and
    writes these."""

    virtio: Probe
    vhost: Probe
    socket: Path

    def both_ways(self) -> Iterator[tuple[Probe, Probe]]:
        yield self.virtio, self.vhost
        yield self.vhost, self.virtio

    def wait_for_link(self) -> None:
        """Waits until frames pass both ways: vhost completes the handshake in its own thread."""
        for sender, receiver in self.both_ways():
            deadline = time.monotonic() + LINK_UP_S
            while time.monotonic() < deadline:
                try:
                    sender.send(frame(b"hello", seq=1))
                    if receiver.receive(1, 0.2):
                        break
                except PortError as down:
                    assert down.number in (errno.ENETDOWN, errno.EAGAIN)
                for end in (sender, receiver):  # this also polls the link state
                    end.count()
            else:
                raise AssertionError("no frame arrives")
            while receiver.receive(8, 0.05):
                pass
            sender.count()


def frame(payload: bytes = b"", **changes: object) -> Frame:
    fields = {"complete": True, **changes}
    return Frame(A, B, 1000, 2000, payload, **fields)  # type: ignore[arg-type]


def open_both(
    virtio: Probe, vhost: Probe, socket: Path, more_virtio: str = "", more_vhost: str = "",
    options: str = "", queues: int = 1, mtu: int = 0,
) -> Link:  # fmt: skip
    """Opens vhost first, because it makes the socket."""
    vhost.open(f"dpdk:net_vhost0,iface={socket}{more_vhost}{options}", queues, f"{B}/24", mtu)
    virtio.open(
        f"dpdk:virtio_user0,path={socket},queue_size=256{more_virtio}{options}",
        queues, f"{A}/24", mtu,
    )  # fmt: skip
    return Link(virtio, vhost, socket)


def send_until_full(sender: Probe, payload: Callable[[int], bytes]) -> int:
    """Sends frames with the payloads of 0, 1, ... until the port refuses one. Returns how many."""
    sent = 0
    with pytest.raises(PortError) as full:
        while sent < 5000:
            sender.send(frame(payload(sent)))
            sent += 1
    assert full.value.number == errno.EAGAIN
    return sent


@pytest.fixture
def link(probe: Make, tmp_path: Path) -> Callable[..., Link]:
    def make(**how: object) -> Link:
        made = open_both(probe(), probe(), tmp_path / "v", **how)  # type: ignore[arg-type]
        made.wait_for_link()
        return made

    return make


@pytest.fixture
def large(link: Callable[..., Link]) -> Link:
    """A link with the offloads of cloud NICs: TSO and LRO."""
    return link(more_virtio=",mrg_rxbuf=1", more_vhost=",tso=1")


# -- frames


@pytest.mark.parametrize("mtu", [1500, 9000])
def test_whole_frames_cross_both_ways(link: Callable[..., Link], mtu: int) -> None:
    joined = link(options=PLAIN, mtu=mtu)
    assert joined.virtio.info["offloads"] & ~LRO == joined.vhost.info["offloads"] == 0
    assert joined.vhost.info["max_frame"] == mtu + 14
    for sender, receiver in joined.both_ways():
        for size in (0, 1, 400, mtu - 52):
            one = frame(os.urandom(size))
            sender.send(one, pieces=3)
            (got,) = receiver.receive()
            assert got.data == bytes(one) and got.segment == 0 and not got.good
        with pytest.raises(PortError) as refused:
            sender.send(frame(bytes(mtu - 51)))
        assert refused.value.number == errno.EMSGSIZE


def test_checksum_offload_is_used(link: Callable[..., Link]) -> None:
    """The checksum is left to the device. The receiver gets it as checked, or complete."""
    joined = link(options=";tso=0;lro=0")
    for sender, receiver in joined.both_ways():
        assert sender.info["offloads"] == TX_CHECKSUM | RX_CHECKSUM
        sender.send(frame(b"x" * 1000, complete=False))
        (got,) = receiver.receive()
        assert got.good or checksum_ok(got.data)
        assert got.data[HEADERS:] == b"x" * 1000


def test_tso_and_lro_segments_cross_whole(large: Link) -> None:
    """A TSO segment crosses as one. It arrives in buffers, with correct headers, flags and sequence
    numbers."""
    for sender, receiver in large.both_ways():
        assert sender.info["offloads"] == TX_CHECKSUM | TSO | RX_CHECKSUM | LRO
        one = frame(os.urandom(64000), complete=False, seq=0xFFFFF000, flags=0x19)  # FIN, PSH
        sender.send(one, segment=1448, pieces=5)
        parts = receiver.receive_bytes(64000)
        assert payload_of(parts) == one.payload
        number = one.seq
        for part in parts:
            assert sequence_of(part.data) == number
            assert part.good and part.segment in (0, 1448)
            assert int.from_bytes(part.data[16:18], "big") == len(part.data) - 14
            number = (number + len(part.data) - HEADERS) % 2**32
        flags = [part.data[47] for part in parts]
        assert flags == [0x10] * (len(parts) - 1) + [0x19], "only the last part has the flags"


def test_tso_can_be_switched_off(link: Callable[..., Link]) -> None:
    joined = link(more_virtio=",mrg_rxbuf=1", more_vhost=",tso=1", options=";tso=0")
    assert not joined.vhost.info["offloads"] & TSO and joined.vhost.info["max_frame"] == 1514


@pytest.mark.parametrize("options,ring", [("", 128), (";descriptors=64", 64)])
def test_ring_of_long_frames_is_short(link: Callable[..., Link], options: str, ring: int) -> None:
    """HARP uses a part of the device's ring, here of 256."""
    joined = link(options=PLAIN + options, mtu=9000)
    for sender, _ in joined.both_ways():
        assert ring <= send_until_full(sender, lambda _: bytes(8000)) <= ring + WAITING


def test_full_ring_refuses_and_loses_nothing(link: Callable[..., Link]) -> None:
    """No frame is lost while the other side waits: the port refuses frames beyond the ring."""
    joined = link(options=PLAIN)
    for sender, receiver in joined.both_ways():
        sent = send_until_full(sender, lambda number: number.to_bytes(4, "big") * 300)
        assert sender.count()["full"] == 1
        got: list[Received] = []
        while len(got) < sent:
            more = receiver.receive(32, 0.05)
            sender.do("flush 0")  # sends the frames accepted but not passed on yet
            assert more, f"{len(got)} of {sent}"
            got += more
        assert [one.data[HEADERS : HEADERS + 4] for one in got] == [
            number.to_bytes(4, "big") for number in range(sent)
        ]
        sender.send(frame(b"again"))
        assert payload_of(receiver.receive()) == b"again"


# -- copies and references


def test_vhost_refers_to_mapped_memory(large: Link) -> None:
    vhost, virtio = large.vhost, large.virtio
    one = frame(os.urandom(60000), complete=False)

    def cross() -> dict[str, int]:
        vhost.send(one, segment=1448, pieces=5)
        assert payload_of(virtio.receive_bytes(60000)) == one.payload
        return vhost.count()

    assert cross() == {**dict.fromkeys(vhost.count(), 0), "copied": 60000}
    vhost.do("dma_map")
    assert cross() == {**dict.fromkeys(vhost.count(), 0), "referred": 60000}
    vhost.do("dma_map")  # mapped twice, and revoked once
    vhost.do("dma_revoke")
    assert cross()["referred"] == 60000
    vhost.do("dma_revoke")
    assert vhost.do("reclaim 0 1000000") == "0"
    vhost.do("dma_unmap_deferred")
    assert cross()["copied"] == 60000
    vhost.do("dma_map")
    assert cross()["copied"] == 0


def test_virtio_user_copies_mapped_memory(large: Link) -> None:
    """Its peer can read only DPDK's own memory, so other memory is copied."""
    large.virtio.do("dma_map")
    large.virtio.send(frame(bytes(60000), complete=False), segment=1448, pieces=3)
    assert len(payload_of(large.vhost.receive_bytes(60000))) == 60000
    counts = large.virtio.count()
    assert (counts["copied"], counts["referred"]) == (60000, 0)


def test_reference_option_switches_zero_copy_off(link: Callable[..., Link]) -> None:
    joined = link(more_virtio=",mrg_rxbuf=1", more_vhost=",tso=1", options=";reference=0")
    joined.vhost.do("dma_map")
    joined.vhost.send(frame(bytes(9000), complete=False), segment=1448, pieces=3)
    assert joined.vhost.count()["copied"] == 9000


def test_reclaim_gives_up_frames_for_stopped_peer(link: Callable[..., Link]) -> None:
    """Frames wait for a stopped peer: reclaim drops them and returns soon."""
    joined = link(options=PLAIN)
    joined.vhost.do("dma_map")
    with pytest.raises(PortError):
        for _ in range(5000):
            joined.vhost.send(frame(bytes(1400)), pieces=2)
    joined.vhost.do("dma_revoke")
    begin = time.monotonic()
    assert joined.vhost.do("reclaim 0 100000") == "0"
    assert time.monotonic() - begin < LINK_UP_S
    joined.vhost.do("dma_unmap_deferred")


def test_reclaim_resets_device_that_keeps_buffers(probe: Make, tmp_path: Path) -> None:
    """The device never returns the buffers. HARP reopens it, counts that, and continues. The memory
    is free then."""
    joined = open_both(probe(), probe(), tmp_path / "v", options=PLAIN)
    joined.wait_for_link()
    vhost = joined.vhost
    vhost.do("dma_map")
    vhost.do("hold")
    for number in range(3):
        vhost.send(frame(bytes([number]) * 1400), pieces=2)
        assert payload_of(joined.virtio.receive()) == bytes([number]) * 1400
    vhost.do("dma_revoke")
    begin = time.monotonic()
    assert vhost.do("reclaim 0 50000") == "0"
    assert time.monotonic() - begin < LINK_UP_S
    vhost.do("dma_unmap_deferred")
    counts = vhost.count()
    assert (counts["referred"], counts["resets"]) == (3 * 1400, 1)
    joined.virtio.end()  # it has lost the connection and does not reconnect
    back = probe()
    back.open(f"dpdk:virtio_user0,path={joined.socket},queue_size=256{PLAIN}", address=f"{A}/24")
    Link(back, vhost, joined.socket).wait_for_link()
    vhost.do("dma_map")
    vhost.send(frame(bytes(1400)), pieces=2)
    assert payload_of(back.receive()) == bytes(1400)
    vhost.do("dma_revoke")
    assert vhost.do("reclaim 0 1000000") == "0"
    assert vhost.count()["resets"] == 0


@pytest.mark.parametrize(("seed", "budget"), [(1, 0), (2, 0), (3, 40), (4, 1)])
def test_random_dma_maps_keep_extent_table_consistent(seed: int, budget: int) -> None:
    """4,000 maps of all sizes, overlapping and adjacent, in any order. Every page is found as long
    as a map covers it, unless the budget is used up. No page is left at the end."""
    said = subprocess.run(
        [PROBE.parent / "dma_map_check", str(seed), "4000", str(budget)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr
    _, within, _, beyond = said.stdout.split()
    assert int(within) > 1000
    assert (int(beyond) > 0) == (budget > 0)


# -- several queues


def test_frames_reach_queue_of_their_local_port(link: Callable[..., Link]) -> None:
    """Neither side steers: a frame on a wrong queue is passed on and counted. ARP reaches all
    queues."""
    joined = link(more_virtio=",queues=2", more_vhost=",queues=2", options=PLAIN, queues=2)
    for sender, receiver in joined.both_ways():
        for port in (2000, 2001, 2002, 2003):
            one = Frame(A, B, 1000, port, b"to %d" % port, complete=True)
            sender.send(one, queue=0)
            receiver.receive(1, 0.05, queue=0)  # the frame is on queue 0, which must poll
            got = receiver.receive(1, 5, queue=1) if port % 2 else None
            if got is not None:
                assert payload_of(got) == one.payload
        assert receiver.count(0)["handed"] == 2
        sender.send(arp_request("02:77:00:00:00:01", A, B), queue=0)
        assert receiver.receive(1, 5, queue=0) and receiver.receive(1, 5, queue=1)


def test_more_queues_than_device_has_is_refused(probe: Make, tmp_path: Path) -> None:
    with pytest.raises(PortError, match="2 instances need as many queues, and the device has 1"):
        probe().open(f"dpdk:net_vhost0,iface={tmp_path}/v", queues=2, address=f"{A}/24")


def test_reserved_local_ports_match_queue(link: Callable[..., Link]) -> None:
    joined = link(more_virtio=",queues=2", more_vhost=",queues=2", queues=2)
    for queue in (0, 1):
        local = joined.vhost.reserve(queue)
        assert local % 2 == queue
        with pytest.raises(PortError) as taken:
            joined.vhost.reserve(queue, local)
        assert taken.value.number == errno.EADDRINUSE
        joined.vhost.release(local, queue)


# -- sleeping


def test_armed_descriptor_becomes_readable_by_timer(link: Callable[..., Link]) -> None:
    """Without an interrupt, a timer makes the descriptor readable after a short time."""
    joined = link(options=PLAIN)
    for sender, receiver in joined.both_ways():
        for _ in range(8):  # the time grows up to a bound
            assert not receiver.arm(True)
            assert receiver.wait(20)
            receiver.arm(False)
        assert not receiver.wait(0.05), "the timer was not disarmed"
        sender.send(frame(b"x"))
        assert receiver.receive(1, 5)


# -- the other side ends and starts again


def test_virtio_user_peer_reconnects_after_kill(probe: Make, tmp_path: Path) -> None:
    joined = open_both(probe(), probe(), tmp_path / "v", options=PLAIN)
    joined.wait_for_link()
    joined.virtio.kill()
    deadline = time.monotonic() + LINK_UP_S
    while time.monotonic() < deadline:
        joined.vhost.count()  # polls the link state
        try:
            joined.vhost.receive(1, 0)
        except PortError as gone:
            assert gone.number == errno.ENETDOWN
            break
    else:
        raise AssertionError("vhost does not notice")
    back = probe()
    back.open(f"dpdk:virtio_user0,path={joined.socket},queue_size=256{PLAIN}", address=f"{A}/24")
    deadline = time.monotonic() + LINK_UP_S
    while time.monotonic() < deadline:
        joined.vhost.count()
        back.send(frame(b"back"))
        try:
            if payload_of(joined.vhost.receive(1, 0.1)) == b"back":
                return
        except PortError:
            pass
    raise AssertionError("no frame of the new peer arrives")


@pytest.mark.slow
@pytest.mark.sanitized
def test_server_removes_its_socket(probe: Make, tmp_path: Path) -> None:
    """virtio_user is the server: the port removes its socket, and replaces that of a killed one."""
    socket = tmp_path / "s"
    virtio_device = f"dpdk:virtio_user0,path={socket},server=1{PLAIN}"
    vhost_device = f"dpdk:net_vhost0,iface={socket},client=1{PLAIN}"
    for end in (Probe.kill, Probe.end, None):
        virtio, vhost = probe(), probe()
        vhost.open(vhost_device, address=f"{B}/24")
        virtio.open(virtio_device, address=f"{A}/24")
        Link(virtio, vhost, socket).wait_for_link()
        if end is None:
            virtio.do("close")
        else:
            end(virtio)
        vhost.end()
        assert socket.exists() == (end is Probe.kill)


# -- errors, in one line


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("", "names no device"),
        ("net_vhost0,iface=/tmp/x;tos=1", "unknown option 'tos=1'; the options after a semicolon"),
        ("net_vhost0,iface=/tmp/x;tso=2", "unknown option 'tso=2'"),
        ("net_vhost0,iface=/tmp/x;descriptors=1", "descriptors (64 to 4096)"),
        ("0000:ff:1f.7", "there is no such PCI device; see lspci -D"),
        ("ff:1f.7", "dpdk:0000:ff:1f.7: there is no such PCI device"),
        ("no-such-device", "DPDK cannot open the device"),
        ("net_vhost0,iface=/nowhere/v", "cannot create a socket at /nowhere/v: No such file"),
    ],
)
def test_invalid_device_is_refused(probe: Make, device: str, says: str) -> None:
    one = probe()
    with pytest.raises(PortError) as refused:
        one.open(f"dpdk:{device}", address=f"{A}/24")
    text = str(refused.value)
    assert says in text and text.startswith("dpdk:") and "\n" not in text


def test_missing_address_is_refused(probe: Make) -> None:
    with pytest.raises(PortError, match="set address = A.B.C.D/N"):
        probe().open("dpdk:net_vhost0,iface=/tmp/x")


def test_mtu_beyond_device_maximum_is_refused(
    link: Callable[..., Link], probe: Make, tmp_path: Path
) -> None:
    vhost = probe()
    vhost.open(f"dpdk:net_vhost0,iface={tmp_path}/m", address=f"{B}/24")
    with pytest.raises(PortError, match="mtu = 60000 is beyond the device's"):
        probe().open(f"dpdk:virtio_user0,path={tmp_path}/m", address=f"{A}/24", mtu=60000)


def test_socket_in_use_is_refused(probe: Make, tmp_path: Path) -> None:
    first = probe()
    first.open(f"dpdk:net_vhost0,iface={tmp_path}/v", address=f"{A}/24")
    with pytest.raises(PortError, match="exists, and a process may listen there") as refused:
        probe().open(f"dpdk:net_vhost0,iface={tmp_path}/v", address=f"{B}/24")
    assert refused.value.number == errno.EBUSY
    with pytest.raises(PortError, match="this process already uses the device|may listen there"):
        first.do("use 1")
        first.open(f"dpdk:net_vhost0,iface={tmp_path}/w", address=f"{B}/24")


def _kernel_nic() -> str:
    for path in sorted(Path("/sys/bus/pci/devices").glob("*")):
        driver = path / "driver"
        if driver.exists() and "vfio" not in driver.resolve().name:
            return path.name
    pytest.skip("this machine has no PCI device with a kernel driver")


def test_device_bound_to_kernel_driver_is_refused(probe: Make) -> None:
    with pytest.raises(PortError, match="bound to the kernel's driver .*; bind it to vfio"):
        probe().open(f"dpdk:{_kernel_nic()}", address=f"{A}/24")


# -- effects on the application


def test_eal_leaves_application_thread_unchanged(link: Callable[..., Link]) -> None:
    """DPDK would pin the thread that starts it, and its threads would inherit the signal mask of
    the thread that creates them."""
    joined = link(options=PLAIN)
    pid = joined.vhost.process.pid
    assert os.sched_getaffinity(pid) == os.sched_getaffinity(0)
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines())
        blocked = int(status["SigBlk"], 16)
        assert (task.name == str(pid)) == (blocked == 0), status["Name"]


def test_no_runtime_files_are_left(link: Callable[..., Link]) -> None:
    joined = link(options=PLAIN)
    for process in (joined.virtio, joined.vhost):
        # The number alone: another program's file may have its digits in a hexadecimal name.
        number = re.compile(rf"(?<![0-9a-f]){process.process.pid}(?![0-9a-f])")
        left = [
            f"{folder}/{name}"
            for top in ("/run/dpdk", "/dev/shm")
            for folder, folders, files in os.walk(top)
            for name in (*folders, *files)
            if number.search(name)
        ]
        assert left == []


def test_process_without_dpdk_device_starts_no_eal(probe: Make, tmp_path: Path) -> None:
    one = probe()
    one.open(f"wire:{tmp_path}/w", address=f"{A}/24")
    assert len(os.listdir(f"/proc/{one.process.pid}/task")) == 1
