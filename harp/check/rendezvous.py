# SPDX-License-Identifier: Apache-2.0
"""The rendezvous of the ranks: JSON messages over the kernel's TCP, or over a UNIX socket.

Rank 0 listens, and the other ranks connect. In each step all ranks send a message to rank 0, and
rank 0 answers all of them with one reply. Every wait has a bound. A rank that does not send its
message in time is lost from then on, and the others go on without it.

A message is a length (4 bytes, big-endian) and that many bytes of JSON.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Optional

from harp.check.launcher import Place

MAGIC = "harp.check/1"
LARGEST = 64 << 20  # bytes of a message
LARGEST_HELLO = 4 << 10
HELLO_S = 2.0  # for the hello of a connection that rank 0 has accepted
STRANGERS_MOST = 256  # connections that have not sent their hello; the oldest one makes room
STEP_S = 30.0  # for the message of a rank in a step
RETRY_S = 0.1
_LENGTH = struct.Struct("!I")

Decide = Callable[[list[Any]], Any]


class RendezvousError(RuntimeError):
    """The ranks could not meet, or rank 0 is lost. The text says what to do."""


def _receive(sock: socket.socket, size: int, until: float) -> bytes:
    """Exactly size bytes. Raises OSError: also for the end of the stream and for a timeout."""
    data = bytearray()
    while len(data) < size:
        sock.settimeout(max(0.001, until - time.monotonic()))
        part = sock.recv(min(size - len(data), 1 << 20))
        if not part:
            raise ConnectionResetError("the connection has ended")
        data += part
    return bytes(data)


def _take(sock: socket.socket, until: float) -> Any:
    """The next message. Raises OSError and ValueError."""
    (length,) = _LENGTH.unpack(_receive(sock, _LENGTH.size, until))
    if length > LARGEST:
        raise ValueError(f"a message of {length} bytes")
    return _parsed(_receive(sock, length, until))


def _parsed(text: bytes) -> Any:
    """Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError as deep:
        raise ValueError("a message that is too deep") from deep


def _packed(message: Any) -> bytes:
    text = json.dumps(message).encode()
    return _LENGTH.pack(len(text)) + text


def _give(sock: socket.socket, packed: bytes, until: float) -> None:
    sock.settimeout(max(0.001, until - time.monotonic()))
    sock.sendall(packed)


def _no_delay(sock: socket.socket) -> None:
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _why(failure: OSError) -> str:
    """What happened to an attempt to connect, and what it says about the way to rank 0."""
    if isinstance(failure, ConnectionRefusedError):
        return "it was reset: rank 0 has not started there, or a firewall rejects TCP to that port"
    if isinstance(failure, (socket.timeout, TimeoutError)):
        return "it was swallowed: a firewall drops TCP to that port, or the host is down"
    return f"{failure.strerror or failure}; name an address of rank 0 that this host reaches"


def _readable(socks: list[socket.socket], wait_s: float) -> set[Any]:
    """Those that have something to read, after at most wait_s seconds."""
    with selectors.DefaultSelector() as ready:
        for sock in socks:
            ready.register(sock, selectors.EVENT_READ)
        return {key.fileobj for key, _ in ready.select(max(0.001, wait_s))}


class _Stranger:
    """A connection that has not sent its hello yet. Any host may connect."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.until = time.monotonic() + HELLO_S
        self._data = bytearray()
        sock.setblocking(False)

    def read(self) -> Optional[Any]:
        """The hello; None until it is complete. Raises OSError and ValueError. Takes no byte behind
        the hello."""
        size = _LENGTH.size
        if len(self._data) >= size:
            (length,) = _LENGTH.unpack_from(self._data)
            if length > LARGEST_HELLO:
                raise ValueError(f"a hello of {length} bytes")
            size += length
        with suppress(BlockingIOError):
            part = self.sock.recv(size - len(self._data))
            if not part:
                raise ConnectionResetError("the connection has ended")
            self._data += part
        if len(self._data) < size or size == _LENGTH.size:
            return None
        return _parsed(bytes(self._data[_LENGTH.size :]))


class Rendezvous:
    """The ranks that have come. `lost`: a sentence for each rank that is missing, by its number;
    only rank 0 knows. `step` does one exchange."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.lost: dict[int, str] = {}
        self._peers: dict[int, socket.socket] = {}  # rank 0: of each rank; else: {0: rank 0's}
        self._socket_file = ""  # rank 0: its UNIX socket, while it listens
        self._first_wait = 0.0  # rank 0 may wait that long for others before the first step

    @property
    def leads(self) -> bool:
        """Whether this rank is rank 0, which decides."""
        return self.place.rank == 0

    @property
    def where(self) -> str:
        """The rendezvous, as users write it."""
        return f"{self.place.host}:{self.place.port}"

    def close(self) -> None:
        """Closes all connections, and removes rank 0's UNIX socket. May be called again."""
        self._stop_listening()
        for sock in self._peers.values():
            sock.close()
        self._peers.clear()

    def open(self, wait_s: float, told: Callable[[int], None]) -> None:
        """Waits for the other ranks for at most wait_s seconds. told: rank 0 calls it with the
        number of ranks that have come, at least each second. Raises RendezvousError."""
        if self.leads:
            self._host(wait_s, told)
        else:
            self._visit(wait_s)

    # -- rank 0

    def _stop_listening(self) -> None:
        if self._socket_file:
            with suppress(OSError):
                os.unlink(self._socket_file)
            self._socket_file = ""

    def _listener(self) -> socket.socket:
        host, port = self.place.host, self.place.port
        if self.place.everywhere:
            host = "0.0.0.0"
        try:
            if host == "unix":
                sock = socket.socket(socket.AF_UNIX)
                if not os.path.lexists(port):
                    self._socket_file = port  # noted first: a signal may come right after bind
                sock.bind(port)
                sock.listen(socket.SOMAXCONN)
                return sock
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            sock = socket.socket(family[0], socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(family[4])
            sock.listen(socket.SOMAXCONN)
            return sock
        except OSError as failure:
            raise RendezvousError(
                f"rank 0 cannot listen on {self.where}: {failure.strerror or failure}; name an "
                "address of rank 0's host and a free port in --rendezvous"
            ) from failure

    def _keeps(self, stranger: _Stranger) -> bool:
        """Reads from a connection. Takes a rank, and closes the connection of anything else. True:
        the hello is not complete yet."""
        sock = stranger.sock
        try:
            hello = stranger.read()
            if hello is None:
                return True
            good = hello["magic"] == MAGIC
            rank, ranks = int(hello["rank"]), int(hello["ranks"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            sock.close()
            return False
        if not good:
            sock.close()
            return False
        if ranks != self.place.ranks or not 0 < rank < ranks or rank in self._peers:
            sock.close()
            raise RendezvousError(
                f"a rank came as {rank} of {ranks}, which is not free among {self.place.ranks} "
                "ranks: give every rank its own --rank and all the same --ranks"
            )
        _no_delay(sock)
        self._peers[rank] = sock
        return False

    def _host(self, wait_s: float, told: Callable[[int], None]) -> None:
        until = time.monotonic() + wait_s
        listener = self._listener()
        listener.setblocking(False)
        strangers: list[_Stranger] = []  # the oldest first
        try:
            while len(self._peers) < self.place.ranks - 1 and time.monotonic() < until:
                told(1 + len(self._peers))
                ends = min([until, *(one.until for one in strangers[:1])])
                wait = min(1.0, ends - time.monotonic())
                came = _readable([listener, *(one.sock for one in strangers)], wait)
                strangers = [one for one in strangers if one.sock not in came or self._keeps(one)]
                if listener in came:
                    with suppress(OSError):
                        strangers.append(_Stranger(listener.accept()[0]))
                while strangers and (
                    len(strangers) > STRANGERS_MOST or strangers[0].until <= time.monotonic()
                ):
                    strangers.pop(0).sock.close()
        finally:
            for one in strangers:
                one.sock.close()
            listener.close()
            self._stop_listening()
        told(1 + len(self._peers))
        for rank in range(1, self.place.ranks):
            if rank not in self._peers:
                self.lost[rank] = f"did not come within {wait_s:.0f} s"

    def _lose(self, rank: int, why: str) -> None:
        self._peers.pop(rank).close()
        self.lost[rank] = why

    def _collect(self, mine: Any, until: float) -> list[Any]:
        """The messages of all ranks; None for those that are lost."""
        said: list[Any] = [None] * self.place.ranks
        said[0] = mine
        with selectors.DefaultSelector() as waiting:
            for rank, sock in self._peers.items():
                waiting.register(sock, selectors.EVENT_READ, rank)
            while waiting.get_map():
                ready = waiting.select(max(0.0, until - time.monotonic()))
                if not ready:
                    break
                for key, _ in ready:
                    rank = key.data
                    waiting.unregister(key.fileobj)
                    try:
                        said[rank] = _take(self._peers[rank], until)
                    except (OSError, ValueError) as failure:
                        self._lose(rank, f"ended early ({failure})")
            silent = [key.data for key in waiting.get_map().values()]
        for rank in silent:
            self._lose(rank, "was silent for too long, and the others went on without it")
        return said

    def _lead(self, mine: Any, decide: Decide, seconds: float) -> Any:
        packed = _packed(decide(self._collect(mine, time.monotonic() + seconds)))
        until = time.monotonic() + STEP_S
        for rank in list(self._peers):
            try:
                _give(self._peers[rank], packed, until)
            except OSError as failure:
                self._lose(rank, f"ended early ({failure})")
        return json.loads(packed[_LENGTH.size :])  # the same types as on the other ranks

    # -- the other ranks

    def _dial(self, until: float) -> socket.socket:
        host, port = self.place.host, self.place.port
        failure: Optional[OSError] = None
        while time.monotonic() < until:
            left = max(0.1, until - time.monotonic())
            try:
                if host != "unix":
                    return socket.create_connection((host, int(port)), left)
                sock = socket.socket(socket.AF_UNIX)
                sock.connect(port)
                return sock
            except socket.gaierror as unknown:
                raise RendezvousError(f"--rendezvous {self.where}: {unknown.strerror}") from unknown
            except OSError as refused:  # rank 0 may start later than this rank
                failure = refused
                time.sleep(RETRY_S)
        assert failure
        raise RendezvousError(f"rank 0 did not answer at {self.where}: {_why(failure)}")

    def _visit(self, wait_s: float) -> None:
        sock = self._dial(time.monotonic() + wait_s)
        _no_delay(sock)
        self._peers[0] = sock
        self._first_wait = wait_s
        hello = {"magic": MAGIC, "rank": self.place.rank, "ranks": self.place.ranks}
        try:
            _give(sock, _packed(hello), time.monotonic() + STEP_S)
        except OSError as failure:
            raise self._left(failure) from failure

    def _left(self, failure: Exception) -> RendezvousError:
        return RendezvousError(f"rank 0 at {self.where} is lost ({failure}): see its messages")

    # -- all

    def step(self, mine: Any, decide: Decide, seconds: float = STEP_S) -> Any:
        """Sends a message to rank 0 and returns its reply, which is the same for all ranks. It is
        also a barrier. decide: rank 0 calls it with the messages of all ranks in their order, None
        for lost ranks. seconds: the longest time until all other ranks have sent theirs. Raises
        RendezvousError if rank 0 is lost."""
        if self.leads:
            return self._lead(mine, decide, seconds)
        try:
            _give(self._peers[0], _packed(mine), time.monotonic() + STEP_S)
            first_wait, self._first_wait = self._first_wait, 0.0
            until = time.monotonic() + seconds + 2 * STEP_S + first_wait
            return _take(self._peers[0], until)
        except (OSError, ValueError) as failure:
            raise self._left(failure) from failure
