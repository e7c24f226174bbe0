# SPDX-License-Identifier: Apache-2.0
"""A peer over the kernel's TCP, and the two ends of a pipe, for transfers verified by hash.

    tcp_peer.py listen ADDRESS PORT [OPTIONS]    prints "ready" to standard error first
    tcp_peer.py connect ADDRESS PORT [OPTIONS]
    tcp_peer.py source [OPTIONS]                 to standard output
    tcp_peer.py sink                             from standard input; also prints "ready" first

Options: --send BYTES, --seed N, --rate MB (per second, 10^6 bytes; 0 is no limit), --cc NAME,
--held (prints "ready" to standard error and sends only after a line on standard input). Option of
the sink: --stall SECONDS (a pause in reading after the first bytes).

The program reports at its end as JSON: bytes and SHA-256 sent and received, the seconds from the
first byte received to the last, and a timeline of the bytes received (seconds of CLOCK_MONOTONIC).
The source reports on standard error, the others on standard output.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

CHUNK = 1 << 18
TIMEOUT_S = 60
SAMPLE_S = 0.02


def pieces(total: int, seed: int) -> Iterator[bytes]:
    """`total` bytes that depend on seed and offset."""
    block = random.Random(seed).randbytes(CHUNK)
    for offset in range(0, total, CHUNK):
        piece = (seed << 56 ^ offset).to_bytes(8, "big") + block[8:]
        yield piece[: total - offset]


class Pace:
    """Holds a sender to a rate, in 10^6 bytes per second."""

    def __init__(self, rate: float) -> None:
        self.rate = rate * 1e6
        self.start = time.monotonic()
        self.bytes = 0

    def wait(self, length: int) -> None:
        if self.rate:
            self.bytes += length
            time.sleep(max(0.0, self.start + self.bytes / self.rate - time.monotonic()))


def send(write: Callable[[bytes], Any], options: argparse.Namespace) -> dict[str, Any]:
    """Sends the data of the options. Returns its size and hash."""
    if options.held:
        say_ready()
        sys.stdin.readline()
    digest, pace = hashlib.sha256(), Pace(options.rate)
    for piece in pieces(options.send, options.seed):
        digest.update(piece)
        write(piece)
        pace.wait(len(piece))
    return {"sent": options.send, "sent_sha256": digest.hexdigest()}


def receive(read_into: Callable[[memoryview], int], stall: float = 0.0) -> dict[str, Any]:
    """Receives to the end. Returns size, hash, seconds and timeline."""
    digest, count, view = hashlib.sha256(), 0, memoryview(bytearray(CHUNK))
    first = last = time.monotonic()
    timeline: list[tuple[float, int]] = []
    while length := read_into(view):
        last = time.monotonic()
        if count == 0:
            first = last
            time.sleep(stall)
        digest.update(view[:length])
        count += length
        if not timeline or last - timeline[-1][0] >= SAMPLE_S:
            timeline.append((last, count))
    return {
        "received": count,
        "received_sha256": digest.hexdigest(),
        "seconds": last - first,
        "timeline": timeline,
    }


def converse(connection: socket.socket, options: argparse.Namespace) -> dict[str, Any]:
    """Sends and receives at the same time."""
    with ThreadPoolExecutor(1) as receiver:
        received = receiver.submit(receive, connection.recv_into)
        sent = send(connection.sendall, options)
        connection.shutdown(socket.SHUT_WR)
        return {**sent, **received.result()}


def say_ready() -> None:
    print("ready", file=sys.stderr, flush=True)


def connected(options: argparse.Namespace) -> socket.socket:
    address = (options.address, options.port)
    made = socket.socket()
    made.settimeout(TIMEOUT_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, options.cc.encode())
    if options.role == "connect":
        made.connect(address)
        return made
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(address)
    made.listen(1)
    say_ready()
    with made:
        connection, _ = made.accept()
    connection.settimeout(TIMEOUT_S)
    return connection


def write_all(piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(1, view) :]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    roles = parser.add_subparsers(dest="role", required=True)
    for role in ("listen", "connect", "source", "sink"):
        one = roles.add_parser(role)
        if role in ("listen", "connect"):
            one.add_argument("address")
            one.add_argument("port", type=int)
            one.add_argument("--cc", default="cubic")
        if role == "sink":
            one.add_argument("--stall", type=float, default=0.0)
        else:
            one.add_argument("--send", type=int, default=0)
            one.add_argument("--seed", type=int, default=1)
            one.add_argument("--rate", type=float, default=0.0)
            one.add_argument("--held", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.role == "source":
        told = send(write_all, options)
        print(json.dumps(told), file=sys.stderr)
    elif options.role == "sink":
        say_ready()
        print(json.dumps(receive(lambda view: os.readv(0, [view]), options.stall)))
    else:
        with connected(options) as connection:
            print(json.dumps(converse(connection, options)))


if __name__ == "__main__":
    main()
