# SPDX-License-Identifier: Apache-2.0
"""Ten thousand connections on one stack, in virtual time: what each costs that does nothing."""

from __future__ import annotations

import os
import subprocess

import pytest

from harp.paths import build_dir

CONNECTIONS = 10_000
SANITIZED = "SANITIZER_RUNTIME" in os.environ


@pytest.fixture(scope="module")
def seen() -> dict[str, int]:
    done = subprocess.run(
        [build_dir() / "tests/idle/harp-idle", str(CONNECTIONS)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: int(number) for name, number in map(str.split, done.stdout.splitlines())}


def test_all_idle_connections_are_open_and_work(seen: dict[str, int]) -> None:
    assert seen["connections"] == CONNECTIONS
    assert seen["answered"] == CONNECTIONS


def test_idle_connection_holds_no_buffers_and_no_timers(seen: dict[str, int]) -> None:
    """No packet, reference, record or run; in an hour no timer fires and no frame is sent."""
    assert seen["held"] == seen["held_after"] == 0
    assert seen["frames_in_an_hour"] == 0


@pytest.mark.skipif(SANITIZED, reason="a sanitizer's shadow is resident, too")
def test_idle_connection_memory_is_bounded(seen: dict[str, int]) -> None:
    """Resident bytes, the connection's own block left out."""
    assert 0 < seen["beside_bytes"] <= 1280  # a place for its neighbour among them
    assert seen["block_bytes"] <= 1024
