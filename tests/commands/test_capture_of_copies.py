# SPDX-License-Identifier: Apache-2.0
"""harp capture of devices whose frames reach no packet socket: the process copies them."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Callable, Optional

import pytest
from click.testing import CliRunner
from ranks import Link, Rank, connect, packet_site, remove_wire, wait_until, wire_path, wire_site
from scapy.all import IP, TCP, PcapReader

from harp import paths
from harp.cli.capture import capture as command
from harp.cli.capture import target
from harp.observe import capture_filter, frame_sockets, statfile
from harp.observe.frame_sockets import CaptureRefused, FrameSockets
from harp.observe.packet_ring import Frame
from harp.observe.statfile import Process
from tools.hosts.lab import Lab

USERS, READERS = 4, 6  # HARP_CAPTURE_USERS and HARP_CAPTURE_READERS
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
SIZE = 4096


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Link]:
    """Two ranks on a wire, with two instances each."""
    folder, wire = tmp_path_factory.mktemp("ranks"), wire_path()
    sites = [wire_site(folder / str(number), wire, number, instances=2) for number in (1, 2)]
    try:
        with Rank(sites[0]) as sender, Rank(sites[1]) as receiver:
            sender.start("init")
            receiver.start("init")
            assert sender.finish() == receiver.finish() == ["1"]
            yield connect(sender, receiver)
    finally:
        remove_wire(wire)


@pytest.fixture
def process(link: Link) -> Process:
    """The sender, as harp capture sees it."""
    link.move(1, SIZE)
    (found,) = statfile.scan([link.sender.site.run_folder])
    return found


@contextmanager
def as_user(uid: int) -> Iterator[None]:
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def users_rank() -> Iterator[Process]:
    """A rank of a user other than root, with umask 0, so that only HARP keeps others away."""
    wire = wire_path()
    with TemporaryDirectory(prefix="harp-test-", dir="/dev/shm") as folder:
        args = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", "sh", "-c", 'umask 0; exec "$@"']
        site = replace(wire_site(Path(folder) / "site", wire, 1), prefix=[*args, "sh"])
        os.chmod(folder, 0o755)
        os.chmod(site.run_folder, 0o1777)
        try:
            with Rank(site) as rank:
                rank.init()
                (found,) = statfile.scan([site.run_folder])
                yield found
                rank.do("finalize")
            assert not list(site.run_folder.iterdir())
        finally:
            remove_wire(wire)


def sockets(process: Process, direction: Optional[str] = None, kept: int = 1 << 18) -> FrameSockets:
    program = capture_filter.program(target(process), kept)
    return FrameSockets(process, program, direction)


def raw(process: Process, instance: int = 0) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.settimeout(20)
    frame_sockets.connect(one, frame_sockets.socket_of(process, instance))
    return one


def asks(process: Process) -> socket.socket:
    """A reader of which the process has read a request for no frames, or which it has refused."""
    one = raw(process)
    one.send(struct.pack("=III", 1, 0, 0))
    unread = bytearray(4)

    def is_read() -> bool:
        fcntl.ioctl(one.fileno(), frame_sockets._SIOCOUTQ, unread)
        return not any(unread)

    wait_until(is_read, 20, "the process does not read the request")
    one.setblocking(False)
    return one


def is_refused(reader: socket.socket) -> bool:
    return frame_sockets._has_ended(reader)


def payload(frame: Frame) -> int:
    return len(IP(bytes(frame.data[14:]))[TCP].payload)


def until(source: FrameSockets, enough: Callable[[list[Frame]], bool]) -> list[Frame]:
    """The TCP segments that arrive until there are enough of them."""
    found: list[Frame] = []

    def more() -> bool:
        for block in source.blocks(0.1):
            found.extend(
                Frame(one.when, one.sent, one.length, memoryview(bytes(one.data)))
                for one in block
                if one.data[12:14] == b"\x08\x00"
            )
        return enough(found)

    wait_until(more, 20, "frames are missing")
    return found


def test_all_frames_of_both_directions_are_copied(link: Link, process: Process) -> None:
    with closing(sockets(process)) as source:
        link.move(4, SIZE)
        frames = until(
            source,
            lambda found: (
                sum(payload(one) for one in found if one.sent) >= 4 * SIZE
                and any(not one.sent for one in found)
            ),
        )
        assert source.lost() == 0
    for frame in frames:
        parsed = IP(bytes(frame.data[14:]))
        assert (parsed.src == "10.9.0.1") == frame.sent
        assert frame.length == len(frame.data) == 14 + parsed.len
    assert [one.when for one in frames if one.sent] == sorted(
        one.when for one in frames if one.sent
    )


@pytest.mark.parametrize("direction", [pytest.param("in", marks=pytest.mark.slow), "out"])
def test_one_direction_is_cut(link: Link, process: Process, direction: str) -> None:
    """A frame keeps its length."""
    with closing(sockets(process, direction, 60)) as source:
        link.move(4, SIZE)
        frames = until(source, lambda found: bool(found))
    assert {frame.sent for frame in frames} == {direction == "out"}
    number = 1 if direction == "out" else 2
    assert {bytes(frame.data[26:30]) for frame in frames} == {bytes([10, 9, 0, number])}
    assert {len(frame.data) for frame in frames} == {60}
    assert all(frame.length == 14 + int.from_bytes(frame.data[16:18], "big") for frame in frames)


def test_frames_that_wait_at_the_end_stay_whole(link: Link, process: Process) -> None:
    with closing(sockets(process, "out")) as source:
        link.move(1, SIZE)
        wait_until(lambda: source.holds(1), 20, "no frame waits")
        source.filter(capture_filter.NOTHING)
        frames = until(source, bool)
    assert all(frame.length == len(frame.data) for frame in frames)


def test_stalled_readers_lose_frames_and_delay_nothing(link: Link, process: Process) -> None:
    with closing(sockets(process)) as source:

        def lost() -> int:
            link.move()
            return source.lost()

        wait_until(lost, 60, "a reader that reads nothing loses nothing")
    with closing(sockets(process)) as source:  # the places of the ended ones are free again
        link.move(1, SIZE)
        until(source, lambda found: bool(found))


def test_places_of_readers_are_bounded(link: Link, process: Process) -> None:
    """Readers that ask for nothing have all places until they end."""
    silent = [asks(process) for _ in range(READERS)]
    with pytest.raises(CaptureRefused, match="other captures of it run"):
        sockets(process)
    for one in silent:
        one.close()
    link.move(1, SIZE)
    sockets(process).close()


@needs_root
def test_readers_of_the_process_user_leave_places_to_root(users_rank: Process) -> None:
    with as_user(NOBODY):
        silent = [asks(users_rank) for _ in range(USERS)]
        surplus = asks(users_rank)
    assert is_refused(surplus) and not any(is_refused(one) for one in silent)
    sockets(users_rank).close()  # root
    for one in (*silent, surplus):
        one.close()


WRONG = {
    "short": b"x",
    "of another version": struct.pack("=III", 99, 0, 64),
    "long": struct.pack("=IIII", 1, 0, 64, 0),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_request_ends_reader(link: Link, process: Process, name: str) -> None:
    with raw(process, 1) as reader:
        reader.send(WRONG[name])
        try:
            assert reader.recv(100) == b""
        except ConnectionResetError:
            pass
    link.move(1, SIZE)


@needs_root
def test_other_users_cannot_connect(users_rank: Process) -> None:
    """They could otherwise take the place of readers again and again. The process has umask 0."""
    with as_user(NOBODY - 1), pytest.raises(CaptureRefused, match="refuses captures by this user"):
        sockets(users_rank)


def test_process_without_a_socket_is_named(process: Process) -> None:
    with pytest.raises(CaptureRefused, match=f"pid {process.pid} has just ended, runs an older"):
        sockets(replace(process, id="0123456789abcdef"))


def test_program_of_another_user_is_not_read(process: Process) -> None:
    with pytest.raises(CaptureRefused, match="another user answers"):
        sockets(replace(process, uid=process.uid + 1))


def test_length_in_expression_is_refused(
    link: Link, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter sees the cut frame. The first program is that of `less 100`."""
    monkeypatch.setenv("HARP_RUN_DIR", str(link.sender.site.run_folder))
    less = ((0x80, 0, 0, 0), (0x25, 1, 0, 100), (0x06, 0, 0, 1), (0x06, 0, 0, 0))
    monkeypatch.setattr("harp.cli.capture._compiled", lambda _: less)
    args = ["-w", str(folders / "out.pcapng"), "less", "100"]
    said = CliRunner().invoke(command, args)
    assert said.exit_code == 1 and "works on packet devices only" in said.output


@pytest.mark.skipif(
    not (paths.build_dir() / "dpdk_glue" / "xdp_program.o").exists(),
    reason="this build has no XDP (no clang)",
)
def test_frames_of_an_xdp_device_are_recorded(
    lab: Lab, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = [packet_site(folders / str(one.index), one, port="xdp") for one in lab.hosts]
    path, host = folders / "out.pcapng", lab.hosts[1]
    monkeypatch.setenv("HARP_RUN_DIR", str(sites[1].run_folder))
    with Rank(sites[0]) as receiver, Rank(sites[1]) as sender:
        receiver.init()
        sender.init()
        link = connect(sender, receiver)
        link.move()
        args = [sys.executable, "-m", "harp", "capture", "-w", str(path), "-c", "200"]
        process = host.popen(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        wait_until(lambda: link.move() or process.poll() is not None, 60, "the capture lasts")
        output, _ = process.communicate()
    assert process.returncode == 0 and f"{path}: 200 frames, " in output, output
    with PcapReader(str(path)) as frames:
        ways = {(frame[IP].src, frame[IP].dst) for frame in frames}
    one, other = (site.address for site in sites)
    assert ways == {(one, other), (other, one)}
