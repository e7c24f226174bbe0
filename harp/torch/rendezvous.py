# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a group find each other: by the store that torch gives to a backend."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from typing import Any

from harp.torch import algorithms
from harp.torch import library as lib

_MAGIC = b"HARP2"  # another number if the ranks cut or order messages in another way
_OK, _MEASURES, _FAILED = b"+", b"*", b"-"


@dataclass(frozen=True)
class Card:
    """What a rank tells the others: its host and the handle of its listener, or why it has none.
    measures: it wants to measure the algorithms of all_reduce."""

    host: str
    handle: bytes = b""
    failure: str = ""
    measures: bool = False

    def pack(self) -> bytes:
        host = self.host.encode()[: lib.NAME - 1]
        rest = self.failure.encode() if self.failure else self.handle
        mark = _FAILED if self.failure else _MEASURES if self.measures else _OK
        return _MAGIC + mark + bytes([len(host)]) + host + rest

    @classmethod
    def unpack(cls, data: bytes) -> Card:
        """Raises ValueError for data of another program or release."""
        head = len(_MAGIC) + 1
        if len(data) <= head or data[: len(_MAGIC)] != _MAGIC:
            raise ValueError("not a card of this release")
        host_end = head + 1 + data[head]
        host, rest = data[head + 1 : host_end].decode(errors="replace"), data[host_end:]
        if data[len(_MAGIC) : head] == _FAILED:
            return cls(host, failure=rest.decode(errors="replace"))
        if len(rest) != lib.HANDLE:
            raise ValueError("its handle has another size")
        return cls(host, handle=rest, measures=data[len(_MAGIC) : head] == _MEASURES)


def own_host() -> str:
    return socket.gethostname()


def local_rank() -> int:
    """This rank's number on its host. Raises HarpError if LOCAL_RANK is no such number."""
    text = os.environ.get("LOCAL_RANK") or "0"
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 31):
        raise lib.HarpError(
            f"LOCAL_RANK={text} is no rank of a host: start the job with torchrun, or unset it"
        )
    return int(text)


def publish(store: Any, rank: int, card: Card) -> None:
    store.set(f"harp/{rank}", card.pack())


def withdraw(store: Any, rank: int) -> None:
    """Takes the card back, so that a later group in the same store does not find it. Some stores
    delete nothing."""
    with contextlib.suppress(RuntimeError, NotImplementedError):
        store.delete_key(f"harp/{rank}")


def collect(store: Any, ranks: int) -> list[Card]:
    """The cards of all ranks. Waits for them as long as the store allows. Raises HarpError if a
    rank cannot use HARP."""
    cards = []
    for rank in range(ranks):
        try:
            card = Card.unpack(bytes(store.get(f"harp/{rank}")))
        except ValueError as wrong:
            raise lib.HarpError(
                f"rank {rank} runs another release of harp.torch ({wrong}): install the same one "
                "on all hosts"
            ) from None
        if card.failure:
            raise lib.HarpError(f"rank {rank} on {card.host} cannot use HARP: {card.failure}")
        cards.append(card)
    return cards


def agree_to_measure(cards: list[Card]) -> bool:
    """Whether all ranks measure. Raises HarpError if only some of them want to."""
    for rank, card in enumerate(cards):
        if card.measures != cards[0].measures:
            raise lib.HarpError(
                f"{algorithms.VARIABLE} differs between rank 0 on {cards[0].host} and rank {rank} "
                f"on {card.host}: set it to the same value on all ranks"
            )
    return cards[0].measures
