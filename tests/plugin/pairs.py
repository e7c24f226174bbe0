# SPDX-License-Identifier: Apache-2.0
"""Two ranks with a plugin, and the transport between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from plugin_peer import Peer, end_all

from harp import paths

TIMEOUT_MS = 3000  # timeout_ms in these tests
SHORT_TIMEOUT_MS = 1000  # timeout_ms in tests that wait for it
NOTICED_MS = TIMEOUT_MS + 7000  # a busy machine detects a lost peer later; TCP takes minutes


def rank_at(folder: Path, keys: str, api: int = 12, **environment: str) -> Peer:
    """Starts a rank with HARP and calls init. The new folder contains its configuration, with the
    lines of keys, and is its run folder."""
    folder.mkdir()
    (folder / "ztcp0.conf").write_text(keys)
    site = {"HARP_CONF_DIR": str(folder), "HARP_RUN_DIR": str(folder), **environment}
    rank = Peer([], site)
    try:
        rank.open(path=str(paths.nccl_plugin_path()), api=api)
        assert rank.init() == 1
    except BaseException:
        rank.kill()
        raise
    return rank


@dataclass
class Side:
    """The command prefix and environment of one of the two processes."""

    prefix: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Transport:
    name: str
    plugin: Path
    sides: tuple[Side, Side]
    devices: int = 1  # of each side


class Pair:
    """Two ranks, a and b, with the plugin loaded and initialized."""

    def __init__(self, transport: Transport, api: int, timeout_ms: int = TIMEOUT_MS) -> None:
        self.api = api
        self.transport = transport
        self.lost = 2 if api < 6 else 6  # ncclSystemError, ncclRemoteError
        self.max_requests = 8 if api < 7 else 32
        timeout = {"HARP_TIMEOUT_MS": str(timeout_ms)}
        self.ranks = [
            Peer(side.prefix, {**side.environment, **timeout}) for side in transport.sides
        ]
        self.a, self.b = self.ranks
        try:
            self.load()
        except BaseException:
            self.abandon()
            raise

    def load(self) -> None:
        # One after the other: the first rank creates the device that the second one opens.
        for rank in self.ranks:
            rank.open(path=str(self.transport.plugin), api=self.api)
            assert rank.init() == self.transport.devices

    @property
    def whole(self) -> bool:
        return all(rank.process.poll() is None for rank in self.ranks)

    def reset(self) -> None:
        for waiting in [rank.start("reset") for rank in self.ranks]:
            waiting.result(timeout=60)

    def end(self) -> None:
        """Ends both ranks together, as a job does. AssertionError if one fails at its end."""
        end_all(self.ranks)

    def abandon(self) -> None:
        """Kills both ranks."""
        for rank in self.ranks:
            rank.kill()


class Ranks:
    """The pair that consecutive tests of one version share."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.pair: Optional[Pair] = None

    def take(self, api: int) -> Pair:
        if self.pair and self.pair.api != api:
            self.drop()
        if not self.pair:
            self.pair = Pair(self.transport, api)
        return self.pair

    def drop(self) -> None:
        pair, self.pair = self.pair, None
        if pair:
            pair.end()
