# SPDX-License-Identifier: Apache-2.0
"""The table of grants: what lasts, what does not, and its file."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from raw_client import inode

from harp.agent import grants
from harp.agent.grants import Grant, Grants, Owner, Passed, start_time

HERE = Owner(os.getpid(), start_time(os.getpid()) or 0, 0)
GONE = 1 << 31  # no socket has this inode


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "agent.grants"


@pytest.fixture
def packet_socket() -> Iterator[socket.socket]:
    if os.geteuid() != 0:
        pytest.skip("packet sockets need root")
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as made:
        yield made


def grant(first: int = 61000, owner: Owner = HERE, **changes: object) -> Grant:
    made = Grant("eth0", "kernel", first, first + 511, owner)
    return replace(made, **changes)  # type: ignore[arg-type]


def dead_owner() -> Owner:
    """A process that has ended; its number may be in use again."""
    return replace(HERE, started=HERE.started - 1)


def test_start_time_tells_processes_apart() -> None:
    assert start_time(os.getpid()) == HERE.started
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert start_time(ended.pid) is None  # a zombie
    ended.wait()
    assert start_time(ended.pid) is None


def test_name_of_process_does_not_confuse(tmp_path: Path) -> None:
    """The name stands in parentheses in front of the fields, and may contain some."""
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "30"]) as process:
        try:
            assert abs((start_time(process.pid) or 0) - HERE.started) < 10**7
        finally:
            process.kill()


def test_owner_with_reused_pid_is_another() -> None:
    assert HERE.lives() and not dead_owner().lives()
    table = Grants()
    table.add(grant(owner=dead_owner()))
    assert table.find(HERE, "eth0", (61000, 61511)) is None


def test_grant_is_found_by_its_owner_only() -> None:
    table = Grants()
    table.add(grant())
    assert table.find(HERE, "eth0", (61000, 61511))
    assert not table.find(replace(HERE, uid=7), "eth0", (61000, 61511))
    assert not table.find(HERE, "eth1", (61000, 61511))
    assert not table.find(HERE, "eth0", (61000, 61510))


def test_range_that_touches_a_grant_is_not_free() -> None:
    table = Grants()
    table.add(grant())
    table.add(grant(0, address="10.0.0.9", last=0))
    for first, last in ((60000, 61000), (61511, 62000), (61100, 61200), (60000, 65535)):
        assert not table.is_free("eth0", first, last)
    assert table.is_free("eth0", 60000, 60999) and table.is_free("eth0", 61512, 65535)
    assert table.is_free("eth1", 61000, 61511)
    assert table.holder("10.0.0.9") and not table.holder("10.0.0.8")


def test_grant_follows_its_interface_to_another_name() -> None:
    """The job knows the first name only."""
    table = Grants()
    table.add(grant(index=socket.if_nametoindex("lo")))
    assert not table.is_free("lo", 61000, 61511) and table.is_free("eth0", 61000, 61511)
    assert [table.ports_used_by(0, name) for name in ("lo", "eth0")] == [512, 0]
    assert table.find(HERE, "eth0", (61000, 61511))


def test_new_interface_does_not_get_the_grant_of_one_that_is_gone() -> None:
    """It has the same name and another number."""
    table = Grants()
    table.add(grant(interface="lo", index=(1 << 31) - 1))
    assert table.is_free("lo", 61000, 61511) and table.ports_used_by(0, "lo") == 0
    assert not table.find(HERE, "lo", (61000, 61511))
    table.add(grant(interface="lo", index=socket.if_nametoindex("lo")))
    found = table.find(HERE, "lo", (61000, 61511))
    assert found and found.present_name() == "lo"


def test_grant_lasts_as_long_as_its_socket(packet_socket: socket.socket) -> None:
    """Its process could have passed the socket on."""
    table = Grants()
    table.add(grant(owner=dead_owner(), sockets=(GONE, inode(packet_socket.fileno()))))
    table.add(grant(62000, sockets=(GONE,)))  # this process lives, but has closed it
    assert table.drop_gone() == 1
    assert [held.first for held in table] == [61000]
    packet_socket.close()
    assert table.drop_gone() == 1 and len(table) == 0


def test_grant_lasts_as_long_as_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives frames to AF_XDP sockets, which are in no list of packet sockets."""
    monkeypatch.setattr(grants.xdp_programs, "attached", lambda: {7})
    table = Grants()
    table.add(grant(owner=dead_owner(), sockets=(GONE,), program=7))
    table.add(grant(62000, sockets=(GONE,), program=8))
    table.add(grant(63000, program=8))
    assert table.drop_gone() == 2
    assert [held.first for held in table] == [61000]


def test_program_of_another_living_process_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of an ended process, or of this one's closed port, is about to go."""
    monkeypatch.setattr(grants.xdp_programs, "attached", lambda: {7, 8, 9})
    asking = replace(HERE, pid=1)
    table = Grants()
    table.add(grant(owner=dead_owner(), program=7))
    table.add(grant(interface="eth1", program=8))
    table.add(grant(62000, program=6))
    assert table.with_program("eth0", besides=asking) is None
    assert table.with_program("eth1", besides=HERE) is None
    other = grant(63000, program=9)
    table.add(other)
    assert table.with_program("eth0", besides=asking) is other


def test_interrupted_grant_lasts_as_long_as_its_process() -> None:
    table = Grants()
    table.add(grant())
    table.add(grant(62000, owner=dead_owner()))
    assert table.drop_gone() == 1
    assert [held.first for held in table] == [61000]


def test_table_survives_in_its_file(file: Path, packet_socket: socket.socket) -> None:
    table = Grants(file)
    pending = grant()
    table.add(pending)
    opened = table.confirm(pending, Passed((inode(packet_socket.fileno()),), 7, "10.0.0.1"))
    table.add(grant(62000))
    table.add(grant(63000, owner=dead_owner()))
    assert list(Grants(file)) == [opened, grant(62000)]
    table.drop(opened)
    assert list(Grants(file)) == [grant(62000)]


def test_grants_of_an_earlier_boot_are_over(
    file: Path, packet_socket: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes, sockets and programs of this boot may have the numbers of earlier ones."""
    monkeypatch.setattr(grants.sysfs, "boot", lambda: "earlier")
    table = Grants(file)
    table.add(grant(sockets=(inode(packet_socket.fileno()),)))
    table.add(grant(0, address="10.0.0.9", last=0))
    assert len(Grants(file)) == 2
    monkeypatch.undo()
    table = Grants(file)
    assert len(table) == 0
    table.add(grant(62000))
    assert list(Grants(file)) == [grant(62000)]


def test_file_of_older_and_newer_release_is_read(file: Path) -> None:
    Grants(file).add(grant())
    (record,) = json.loads(file.read_text())
    newer = {**record, "colour": "red", "owner": {**record["owner"], "name": "x"}}
    later = ("sockets", "program", "index", "kernel_address", "boot")
    older = {name: value for name, value in record.items() if name not in later}
    for one in (newer, older):
        file.write_text(json.dumps([one]))
        assert list(Grants(file)) == [grant()]


@pytest.mark.parametrize("text", ["", "{", "{}x", "[1]", '[{"interface": "e"}]', "[{}]", "7", "\0",
                                  '[{"interface":"e","address":"k","first":"x","last":1,'
                                  '"owner":{"pid":1,"started":1,"uid":0}}]'])  # fmt: skip
def test_damaged_file_is_refused_with_remedy(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(ValueError, match="not a table of grants .*remove the file"):
        Grants(file)


def test_undecodable_file_is_refused(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\0")
    with pytest.raises(ValueError, match="remove the file"):
        Grants(file)


def test_failed_write_leaves_the_old_table(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Grants(file).add(grant())
    table = Grants(file)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError):
        table.add(grant(62000))
    monkeypatch.undo()
    assert list(table) == [grant()]
    assert list(Grants(file)) == [grant()]


def test_users_grants_are_counted() -> None:
    table = Grants()
    table.add(grant())
    table.add(grant(62000, owner=replace(HERE, uid=7)))
    assert [table.used_by(uid) for uid in (0, 7, 8)] == [1, 1, 0]


def test_users_ports_are_counted_on_each_interface() -> None:
    table = Grants()
    table.add(grant())
    table.add(grant(62000))
    table.add(grant(63000, interface="eth1"))
    table.add(grant(63000, owner=replace(HERE, uid=7)))
    table.add(grant(0, address="10.0.0.9", last=0))
    assert [table.ports_used_by(0, name) for name in ("eth0", "eth1", "lo")] == [1024, 512, 0]
    assert table.ports_used_by(7, "eth0") == 512


def test_packet_sockets_are_listed(packet_socket: socket.socket) -> None:
    number = inode(packet_socket.fileno())
    assert number in grants.packet_sockets()
    packet_socket.close()
    assert number not in grants.packet_sockets()
