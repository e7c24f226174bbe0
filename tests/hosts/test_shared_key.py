# SPDX-License-Identifier: Apache-2.0
"""HARP_KEY_FILE: only hosts with the same key can connect to each other. A recorded hello cannot be
replayed.

The unauthenticated peers here know the handle's token and build their hellos with Python's BLAKE2b,
in the format of plugin/link/protocol.h and plugin/link/proof.h.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import pytest
from ranks import SYSTEM_ERROR, Failed, Rank, Site, connect, wait_until
from test_foreign_handles import with_check
from unauthenticated_peers import (
    Scene,
    UnauthenticatedPeer,
    hello,
    scene_on,
    sites_of,
    token_of,
)

from tools.hosts.lab import Lab

KEY = b"correct horse battery staple"
CHALLENGE, EACCES = 0xFFFF, 13
HELLO_PROOF, WELCOME_PROOF, PROOF = 48, 24, 32  # offsets and length, bytes
SAME = "HARP_KEY_FILE must name the same key on every host of the job"


def with_key(site: Site, key: bytes) -> Site:
    path = site.folder / "key"
    path.write_bytes(key)
    path.chmod(0o600)
    site.environment["HARP_KEY_FILE"] = str(path)
    return site


@pytest.fixture
def sites(lab: Lab, tmp_path: Path) -> list[Site]:
    return sites_of(lab, tmp_path)


@pytest.fixture
def scene(lab: Lab, sites: list[Site]) -> Iterator[Scene]:
    """A listening rank and its peer, both with the key."""
    with scene_on(lab, [with_key(site, KEY) for site in sites]) as made:
        yield made


def proof(key: bytes, side: bytes, *said: bytes) -> bytes:
    label = blake2b(b"HARP flow greeting, version 1\0", digest_size=32).digest()
    made = blake2b(key, digest_size=32, key=label).digest()
    return blake2b(side + b"".join(said), digest_size=PROOF, key=made).digest()


def put(text: bytes, at: int, proof: bytes) -> bytes:
    return text[:at] + proof + text[at + len(proof) :]


def received(peer: UnauthenticatedPeer, size: int) -> bytes:
    """Waits until the listener has sent `size` bytes. Returns them."""

    def enough() -> bytes:
        said = peer.do("state")[2]
        return said if len(said) >= size else b""

    return wait_until(enough, 20, f"fewer than {size} bytes were received")


def status(welcome: bytes) -> int:
    return int.from_bytes(welcome[6:8], "big")


def ask(peer: UnauthenticatedPeer, first: bytes) -> bytes:
    """Sends a hello. Returns the listener's challenge."""
    peer.do("open 1")
    peer.do(f"send {first.hex()}")
    challenge = received(peer, 64)
    assert status(challenge) == CHALLENGE
    return challenge


def answer(peer: UnauthenticatedPeer, second: bytes) -> bytes:
    peer.do(f"send {second.hex()}")
    return received(peer, 128)[64:128]


def no_link_arrived(rank: Rank, listener: int) -> None:
    with pytest.raises(AssertionError, match="late"):
        rank.accept(listener, 200)


def test_peer_with_key_is_accepted(scene: Scene) -> None:
    """The listener accepts the peer, and proves that it also has the key."""
    first = put(hello(token_of(scene)), HELLO_PROOF, os.urandom(PROOF))
    bare = put(first, HELLO_PROOF, bytes(PROOF))
    with scene.unauthenticated_peer() as peer:
        challenge = ask(peer, first)
        mine = proof(KEY, b"c", first, challenge, bare)
        welcome = answer(peer, put(bare, HELLO_PROOF, mine))
        assert status(welcome) == 0
        theirs = proof(KEY, b"a", first, challenge, put(welcome, WELCOME_PROOF, bytes(PROOF)))
        assert welcome[WELCOME_PROOF:][:PROOF] == theirs
        scene.listening.accept(scene.listener[0])  # the link exists
        scene.still_serves()
    assert scene.counted("keys_refused") == 0


def test_peer_without_key_is_refused(scene: Scene) -> None:
    """Another key, an invalid answer, a reflected challenge, another hello."""
    first = put(hello(token_of(scene)), HELLO_PROOF, os.urandom(PROOF))
    bare = put(first, HELLO_PROOF, bytes(PROOF))

    def right(challenge: bytes, said: bytes = bare) -> bytes:
        return put(said, HELLO_PROOF, proof(KEY, b"c", first, challenge, said))

    epoch = put(bare, 36, b"\0\0\0\1")
    answers = [
        lambda challenge: put(bare, HELLO_PROOF, proof(b"x" * 16, b"c", first, challenge, bare)),
        lambda challenge: put(bare, HELLO_PROOF, proof(KEY, b"a", first, challenge, bare)),
        lambda challenge: put(bare, HELLO_PROOF, challenge[WELCOME_PROOF:][:PROOF]),
        lambda challenge: right(challenge)[:-1] + bytes([right(challenge)[-1] ^ 1]),
        lambda challenge: right(bytes(64)),
        lambda challenge: right(challenge, epoch),
        lambda challenge: bare,
        lambda challenge: first,
    ]
    for number, make in enumerate(answers):
        with scene.unauthenticated_peer() as peer:
            welcome = answer(peer, make(ask(peer, first)))
            assert status(welcome) == EACCES, f"answer {number}"
            assert not any(welcome[WELCOME_PROOF:][:PROOF])
    assert scene.counted("keys_refused") == len(answers)
    no_link_arrived(scene.listening, scene.listener[0])
    assert scene.listening.warnings and all(SAME in said for said in scene.listening.warnings)


def test_replayed_hello_is_refused(scene: Scene) -> None:
    first = put(hello(token_of(scene)), HELLO_PROOF, os.urandom(PROOF))
    bare = put(first, HELLO_PROOF, bytes(PROOF))
    with scene.unauthenticated_peer() as peer:
        challenge = ask(peer, first)
        second = put(bare, HELLO_PROOF, proof(KEY, b"c", first, challenge, bare))
        assert status(answer(peer, second)) == 0
        with scene.unauthenticated_peer() as replaying:
            assert ask(replaying, first)[WELCOME_PROOF:] != challenge[WELCOME_PROOF:]
            assert status(answer(replaying, second)) == EACCES
        with scene.unauthenticated_peer() as early:  # both at once: the second answers no challenge
            early.do("open 1")
            early.do(f"send {(first + second).hex()}")
            early.wait_for_closes(1)
        assert peer.do("state")[0] == 1, "the recorded connection was closed"
    assert scene.counted("keys_refused") == 1


# Obeys lines of its input: "receive N" prints the next N bytes of the connection; "send HEX".
IMPOSTOR = """
import socket, sys
listener = socket.create_server((sys.argv[1], 0))
listener.settimeout(5)
print(listener.getsockname()[1], flush=True)
one = listener.accept()[0]
one.settimeout(5)
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    if word == "send":
        one.sendall(bytes.fromhex(rest))
    else:
        print(one.recv(int(rest), socket.MSG_WAITALL).hex(), flush=True)
"""


class Impostor:
    """A socket that pretends to be the listening rank."""

    def __init__(self, scene: Scene, address: str) -> None:
        args = [sys.executable, "-c", IMPOSTOR, address]
        self.process = scene.host.popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout
        port = struct.pack("!H", int(self.process.stdout.readline()))
        handle = put(put(scene.handle, 4, socket.inet_aton(address)), 8, port)
        self.handle = with_check(handle)

    def receive(self, size: int) -> bytes:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"receive {size}\n")
        self.process.stdin.flush()
        return bytes.fromhex(self.process.stdout.readline())

    def send(self, text: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"send {text.hex()}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait(20)


@pytest.mark.parametrize("knows", [True, False], ids=["with the key", "without"])
def test_listener_must_prove_key(scene: Scene, knows: bool) -> None:
    """The connecting rank verifies the listener's proof."""
    impostor = Impostor(scene, scene.other.site.address)
    try:
        scene.listening.start("connect", impostor.handle, 5000)
        first = impostor.receive(80)
        welcome = b"harp\0\1\xff\xff" + first[24:34] + b"\x05\xdc" + bytes(44)
        challenge = put(welcome, WELCOME_PROOF, os.urandom(PROOF))
        impostor.send(challenge)
        second = impostor.receive(80)
        bare = put(second, HELLO_PROOF, bytes(PROOF))
        assert second[HELLO_PROOF:][:PROOF] == proof(KEY, b"c", first, challenge, bare)
        welcome = put(welcome, 6, bytes(2))
        # Without the key, the best guess is to reflect the received bytes.
        guess = second[HELLO_PROOF:][:PROOF]
        mine = proof(KEY, b"a", first, challenge, welcome) if knows else guess
        impostor.send(put(welcome, WELCOME_PROOF, mine))
        if knows:
            scene.listening.finish()
            return
        with pytest.raises(Failed) as failed:
            scene.listening.finish()
        assert failed.value.code == SYSTEM_ERROR
        (warning,) = scene.listening.warnings
        assert "the peer does not prove that it has the key" in warning
    finally:
        impostor.end()


def test_equal_keys_connect(scene: Scene) -> None:
    scene.still_serves()


@pytest.mark.parametrize(
    "keys,said",
    [
        ((None, KEY), "the peer does not prove that it has the key"),
        ((KEY, None), "the peer requires a key, and this host has none"),
        ((KEY, KEY[:-1]), "the peer has a different key"),
    ],
    ids=["listener without", "connector without", "different"],
)
def test_hosts_with_different_keys_do_not_connect(
    sites: list[Site], keys: tuple[bytes | None, ...], said: str
) -> None:
    for site, key in zip(sites, keys):
        if key:
            with_key(site, key)
    with Rank(sites[0]) as listening, Rank(sites[1]) as other:
        listening.init()
        other.init()
        number, handle = listening.listen()
        with pytest.raises(Failed) as failed:
            other.connect(handle)
        assert failed.value.code == SYSTEM_ERROR
        (warning,) = other.warnings
        assert said in warning and SAME in warning and sites[0].address in warning
        if keys[0]:  # else it has sent no challenge
            no_link_arrived(listening, number)


def test_perf_ends_with_the_rank_that_failed(lab: Lab, sites: list[Site]) -> None:
    """A rank that waits in accept notices that the connecting rank has left, long before the
    timeout."""
    with_key(sites[0], KEY[:-1])
    with_key(sites[1], KEY)
    command = [sys.executable, "-m", "harp", "perf", "sendrecv", "-b", "4K", "-e", "4K"]
    command += ["--nranks", "2", "--rendezvous", "10.77.0.1:5000", "--timeout", "60"]
    ranks = [
        host.popen(
            [*command, "--rank", str(host.index)],
            site.all_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for host, site in zip(lab.hosts, sites)
    ]
    try:
        said = [rank.communicate(timeout=30)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [1, 1]
    assert "accept did not complete: rank 0 is lost: see what it says" in said[1], said


@pytest.mark.parametrize(
    "content,said",
    [
        (None, "No such file or directory"),
        (b"", "a key has at least 16 bytes"),
        (b"0123456789abcde\n", "a key has at least 16 bytes"),
        (b"x" * 4097, "a key has at most 4096 bytes"),
    ],
    ids=["missing", "empty", "short", "long"],
)
def test_invalid_key_file_declines(sites: list[Site], content: bytes | None, said: str) -> None:
    site = with_key(sites[0], content or b"")
    if content is None:
        (site.folder / "key").unlink()
    with Rank(site) as rank:
        with pytest.raises(Failed) as failed:
            rank.init()
        assert failed.value.code == SYSTEM_ERROR
        (warning,) = rank.warnings
    assert f"HARP_KEY_FILE {site.folder}/key: {said}" in warning
    assert "head -c 32 /dev/urandom | base64" in warning


def test_trailing_newline_is_not_part_of_key(sites: list[Site]) -> None:
    with_key(sites[0], KEY)
    with_key(sites[1], KEY + b"\n")
    with Rank(sites[0]) as listening, Rank(sites[1]) as other:
        listening.init()
        other.init()
        connect(other, listening).move()


def test_readable_key_file_is_a_warning(sites: list[Site]) -> None:
    (with_key(sites[0], KEY).folder / "key").chmod(0o644)
    with Rank(sites[0]) as rank:
        rank.init()
        (warning,) = rank.warnings
    assert "may read or change it; chmod 600 it" in warning
