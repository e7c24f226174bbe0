# SPDX-License-Identifier: Apache-2.0
"""Any host may connect to the rendezvous of `harp check`. It ends no rank, and delays none."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest

from harp.check import launcher, rendezvous
from harp.check.rendezvous import Rendezvous
from tools.hosts.ranks import wait_until


def join(folder: Path, rank: int, ranks: int) -> Rendezvous:
    return Rendezvous(launcher.Place(rank, ranks, "unix", str(folder / "rendezvous")))


def gathered(folder: Path, strangers: Callable[[], list[socket.socket]], bound_s: float) -> None:
    """Two ranks meet although the strangers have come first."""
    lead, one = join(folder, 0, 2), join(folder, 1, 2)
    ended: list[Any] = []

    def host() -> None:
        lead.open(20, lambda _: None)
        ended.append(lead.step("a", tuple))

    thread = threading.Thread(target=host, daemon=True)
    thread.start()
    wait_until((folder / "rendezvous").exists, 20, "rank 0 does not listen", [])
    begun = time.monotonic()
    held = strangers()
    one.open(20, lambda _: None)
    assert one.step("b", tuple) == ["a", "b"]
    assert time.monotonic() - begun < bound_s
    thread.join(20)
    assert ended == [["a", "b"]]
    for sock in held:
        sock.close()
    for rank in (lead, one):
        rank.close()


def connected(folder: Path) -> Optional[socket.socket]:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(str(folder / "rendezvous"))  # waits while the queue is full
    except ConnectionRefusedError:  # the file is there, and rank 0 does not listen yet
        sock.close()
        return None
    return sock


def stranger(folder: Path, message: bytes = b"") -> socket.socket:
    sock: socket.socket = wait_until(lambda: connected(folder), 20, "rank 0 does not listen")
    sock.settimeout(20)
    if message:
        sock.sendall(struct.pack("!I", len(message)) + message)
    return sock


@pytest.mark.parametrize(
    "message",
    [
        b"[" * 4000,
        b'{"magic": "harp.check/1", "rank": Infinity, "ranks": 2}',
        b"[]",
        b"\xff",
        b'{"magic": "other", "rank": 1, "ranks": 2}',
    ],
)
def test_no_message_of_a_stranger_ends_rank_0(tmp_path: Path, message: bytes) -> None:
    def come() -> list[socket.socket]:
        sock = stranger(tmp_path, message)
        assert sock.recv(1) == b""
        return [sock]

    gathered(tmp_path, come, 15)


def test_silent_strangers_delay_no_rank(tmp_path: Path) -> None:
    """One after the other, they would take two seconds each."""
    gathered(tmp_path, lambda: [stranger(tmp_path) for _ in range(12)], 15)


def test_strangers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest one makes room."""
    monkeypatch.setattr(rendezvous, "STRANGERS_MOST", 3)
    monkeypatch.setattr(rendezvous, "HELLO_S", 60.0)

    def come() -> list[socket.socket]:
        socks = [stranger(tmp_path) for _ in range(5)]
        assert [sock.recv(1) for sock in socks[:2]] == [b"", b""]
        return socks

    gathered(tmp_path, come, 15)


def test_hello_in_pieces_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "HELLO_S", 20.0)
    lead = join(tmp_path, 0, 2)
    thread = threading.Thread(target=lambda: lead.open(20, lambda _: None), daemon=True)
    thread.start()
    wait_until((tmp_path / "rendezvous").exists, 20, "rank 0 does not listen", [])
    hello = json.dumps({"magic": "harp.check/1", "rank": 1, "ranks": 2}).encode()
    sock = stranger(tmp_path)
    for byte in struct.pack("!I", len(hello)) + hello:
        sock.sendall(bytes([byte]))
        time.sleep(0.002)
    thread.join(20)
    assert lead.lost == {} and not thread.is_alive()
    lead.close()
    sock.close()


def test_deep_message_of_a_rank_loses_that_rank(tmp_path: Path) -> None:
    lead, one = join(tmp_path, 0, 2), join(tmp_path, 1, 2)
    thread = threading.Thread(target=lambda: one.open(20, lambda _: None), daemon=True)
    thread.start()
    lead.open(20, lambda _: None)
    thread.join(20)
    text = b"[" * 200_000
    sender = threading.Thread(
        target=lambda: one._peers[0].sendall(struct.pack("!I", len(text)) + text), daemon=True
    )
    sender.start()
    assert lead.step("a", tuple) == ["a", None]
    sender.join(20)
    assert "too deep" in lead.lost[1]
    lead.close()
    one.close()
