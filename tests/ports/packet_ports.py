# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of packet ports on the lab's hosts."""

from __future__ import annotations

from collections.abc import Callable

from port_probe import HEADERS, Frame, Probe, Received

from tools.hosts.lab import Host

Make = Callable[..., Probe]
Hosts = Callable[[str], "list[Host]"]

MSS = 1448
UNUSED_ADDRESS = "10.77.0.77"  # an unused address of the lab's network


def between(a: Probe, b: Probe, payload: bytes = b"", **changes: object) -> Frame:
    """A segment from port a to port b."""
    words: dict[str, object] = {
        "src": a.info["address"],
        "dst": b.info["address"],
        "sport": 50000,
        "dport": 50001,
        "src_mac": a.info["mac"],
        "dst_mac": b.info["mac"],
    }
    words.update(changes)
    return Frame(payload=payload, **words)  # type: ignore[arg-type]


def payload_of(frames: list[Received], header: int = HEADERS) -> bytes:
    return b"".join(frame.data[header:] for frame in frames)


def listening(host: Host) -> set[int]:
    """The TCP ports on which the host's kernel listens."""
    said = host.run(["ss", "-Hltn"]).stdout
    return {int(line.split()[3].rsplit(":", 1)[1]) for line in said.splitlines()}
