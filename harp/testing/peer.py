# SPDX-License-Identifier: Apache-2.0
"""The state of a scripted peer: its connections and its received data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scapy.layers.inet import TCP
from scapy.packet import Packet

from harp.testing.segments import flag_bits, payload

_MOD = 1 << 32


class DialogueError(AssertionError):
    """The stack did not follow the script. The message ends with the trace."""


@dataclass
class Flow:
    """The peer's state of one connection. Numbers are relative unless noted."""

    iss: int  # absolute, the peer's
    irs: int | None = None  # absolute, the stack's; None until it has sent a SYN
    snd_nxt: int = 0
    rcv_nxt: int = 0
    ts_recent: int | None = None  # last TSval of the stack
    ts_offered: bool = False  # the peer's SYN carried timestamps
    ts_on: bool = False  # both SYNs did

    def relative_seq(self, absolute: int) -> int:
        """A relative number in the stack's sequence space. It may be negative."""
        return _near(absolute - (self.irs or 0))

    def relative_ack(self, absolute: int) -> int:
        """A relative number in the peer's sequence space."""
        return _near(absolute - self.iss)


def _near(difference: int) -> int:
    difference %= _MOD
    # A number just below zero is an old duplicate, not the end of a long transfer.
    return difference - _MOD if difference >= _MOD - (1 << 24) else difference


class Sink:
    """A peer's receive queue: takes the stack's segments in any order.

    `data` is the stream so far, `ack` the relative number that acknowledges it, `ended` whether
    the stack's FIN is part of it.
    """

    def __init__(self) -> None:
        self.data = b""
        self.ended = False
        self._beyond: dict[int, bytes] = {}
        self._fin: int | None = None

    @property
    def ack(self) -> int:
        return 1 + len(self.data) + self.ended

    def take(self, packets: Iterable[Packet]) -> bool:
        """Takes segments from drain or expect. Returns whether any holds data or a FIN."""
        any_data = False
        for packet in packets:
            tcp, piece = packet[TCP], payload(packet)
            fin = flag_bits(tcp.flags) & 0x01
            any_data |= bool(piece) or bool(fin)
            if piece:
                self._beyond[tcp.seq - 1] = max(self._beyond.get(tcp.seq - 1, b""), piece, key=len)
            if fin:
                self._fin = tcp.seq - 1 + len(piece)
        self._join()
        return any_data

    def _join(self) -> None:
        for at in sorted(self._beyond):
            have = len(self.data)
            if at > have:
                break
            piece = self._beyond.pop(at)
            if piece[: have - at] != self.data[at : at + len(piece)]:
                raise DialogueError(f"bytes from {at} on were sent again with other content")
            self.data += piece[have - at :]
        self.ended = self._fin == len(self.data)
