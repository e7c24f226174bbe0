# SPDX-License-Identifier: Apache-2.0
"""Moves bytes over the kernel's TCP and prints their count and hash. It runs in a lab's hosts.

tcp_transfer.py receive ADDRESS PORT          prints "listening", then count and hash
tcp_transfer.py send ADDRESS PORT BYTES SEED  prints count and hash
"""

import hashlib
import random
import socket
import sys
from typing import Iterator

CHUNK = 1 << 18


def pieces(total: int, seed: int) -> Iterator[bytes]:
    """`total` bytes that depend on seed and offset."""
    block = random.Random(seed).randbytes(CHUNK)
    for offset in range(0, total, CHUNK):
        piece = offset.to_bytes(8, "big") + block[8:]
        yield piece[: total - offset]


def receive(address: str, port: int) -> None:
    digest, count = hashlib.blake2b(digest_size=16), 0
    with socket.create_server((address, port)) as listener:
        print("listening", flush=True)
        connection, _ = listener.accept()
    with connection:
        while data := connection.recv(CHUNK):
            digest.update(data)
            count += len(data)
    print(count, digest.hexdigest())


def send(address: str, port: int, total: int, seed: int) -> None:
    digest = hashlib.blake2b(digest_size=16)
    with socket.create_connection((address, port), timeout=10) as connection:
        connection.settimeout(60)
        for piece in pieces(total, seed):
            digest.update(piece)
            connection.sendall(piece)
    print(total, digest.hexdigest())


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(sys.argv[2], int(sys.argv[3]))
    else:
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
