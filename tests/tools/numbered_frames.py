# SPDX-License-Identifier: Apache-2.0
"""Frames with numbers, over AF_PACKET, to observe each fault of a relay.

    numbered_frames.py listen INTERFACE COUNT   prints "listening"; at the end of its input, waits
                                                for the last frames and prints the received numbers
    numbered_frames.py send INTERFACE MAC COUNT
    numbered_frames.py bytes INTERFACE MAC BEGIN:END...   segments with these bytes of a stream

The frames are TCP by their IPv4 header only. No kernel has the address, so none answers.
"""

import select
import socket
import struct
import sys
import time

ETH_P_IP = 0x0800
TCP = 6
MARK = b"harp numbered frame "
ADDRESSES = socket.inet_aton("10.66.0.1") + socket.inet_aton("10.66.0.2")
QUIET_SECONDS = 0.4  # after the last frame; its way through the relay takes less
SO_RCVBUFFORCE = 33  # of Linux; beyond the limit for others than root


def headers(mac: str, payload: int) -> bytes:
    """The Ethernet and IPv4 headers for `payload` bytes after the TCP header."""
    ethernet = bytes.fromhex(mac.replace(":", "")) + b"\x02\x66\x00\x00\x00\x01\x08\x00"
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + 20 + payload, 0, 0, 64, TCP, 0) + ADDRESSES
    return ethernet + ip


def listen(interface: str, count: int) -> None:
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IP))
    frames.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
    frames.bind((interface, ETH_P_IP))
    print("listening", flush=True)
    numbers = []
    frames.settimeout(QUIET_SECONDS)
    while len(numbers) < 2 * count:
        ended = bool(select.select([sys.stdin], [], [], 0)[0])
        try:
            frame = frames.recv(2048)
        except socket.timeout:
            if ended:
                break
            continue
        if MARK in frame:
            numbers.append(struct.unpack("!I", frame[-4:])[0])
    print(*numbers)


def open_sender(interface: str) -> socket.socket:
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    frames.bind((interface, ETH_P_IP))
    return frames


def send(interface: str, mac: str, count: int) -> None:
    frames = open_sender(interface)
    start = headers(mac, len(MARK) + 4) + bytes(20) + MARK
    for number in range(count):
        frames.send(start + struct.pack("!I", number))
        if number % 50 == 49:
            time.sleep(0.001)


def send_bytes(interface: str, mac: str, ranges: list[str]) -> None:
    frames = open_sender(interface)
    for begin, end in (map(int, one.split(":")) for one in ranges):
        tcp = struct.pack("!HHIIBBHHH", 1, 2, begin % 2**32, 0, 5 << 4, 0, 0, 0, 0)
        frames.send(headers(mac, end - begin) + tcp + bytes(end - begin))


if __name__ == "__main__":
    if sys.argv[1] == "listen":
        listen(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1] == "bytes":
        send_bytes(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        send(sys.argv[2], sys.argv[3], int(sys.argv[4]))
