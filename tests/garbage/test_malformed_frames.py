# SPDX-License-Identifier: Apache-2.0
"""A million frames that no sound host would send, thrown at a rank with listeners and links.

They are counted, nothing leaks, and the next connection works. Most worth in a
build with the address sanitizer, which also asks about leaks when the rank ends.
HARP_TEST_GARBAGE: how many frames; HARP_TEST_SEED: as printed.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import Rank, Site, connect, remove_wire, wait_until, wire_path, wire_site

from harp import paths

COUNT = int(os.environ.get("HARP_TEST_GARBAGE") or 1_000_000)
SEED = int(os.environ.get("HARP_TEST_SEED") or secrets.randbits(32))
ROUNDS = 4
FLOOD_S = 100.0
TIMEOUT_MS = 4000


class GarbageInjector:
    """tests/garbage/garbage_injector.c between two wires."""

    def __init__(self, victim: Path, other: Path) -> None:
        program = paths.build_dir() / "tests" / "garbage" / "garbage_injector"
        assert program.exists(), f"{program} is not built: meson compile -C {paths.build_dir()}"
        self.process = subprocess.Popen(
            [str(program), str(victim), str(other)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ok"

    def _answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def start_flood(self, count: int, seed: int, checksum_good: bool = True) -> None:
        """Throws so many frames; checksum_good: half of them as if their checksums were right."""
        assert self.process.stdin
        self.process.stdin.write(f"flood {count} {seed} {int(checksum_good)}\n")
        self.process.stdin.flush()

    def finish_flood(self) -> None:
        """The wire has taken all of them."""
        word, learned = self._answer().split()
        assert word == "ok" and int(learned) > 40, "hardly a real frame was seen"

    def __enter__(self) -> GarbageInjector:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(10)


@pytest.fixture
def wires() -> Iterator[list[Path]]:
    made = [wire_path(), wire_path()]
    yield made
    for path in made:
        remove_wire(path)


def counters(site: Site) -> dict[str, int]:
    (process,) = site.published()
    return process.totals


# Where a received frame can end: each counts once.
FATES = (
    "rx_drop_truncated rx_drop_not_ours rx_drop_fragment rx_drop_checksum rx_drop_malformed "
    "rx_drop_source arp_requests_in arp_replies_in arp_conflicts icmp_echo_in icmp_unreachable_in "
    "icmp_too_big_in icmp_ignored tcp_segments_in"
).split()


def unaccounted(found: dict[str, int]) -> int:
    return found["rx_frames"] - sum(found[name] for name in FATES)


def resident_kib(rank: Rank) -> int:
    text = Path(f"/proc/{rank.process.pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0])


def warm_up(victim: Rank, other: Rank, listener: tuple[int, str]) -> None:
    """Opens links both ways, so that frames are known that nearly fit."""
    for size in (1, 700, 3000):
        connect(other, victim, listener).move(count=20, size=size)
        connect(victim, other).move(count=20, size=size)


def end_well(victim: Rank, other: Rank) -> None:
    """The sanitizer's verdict, leaks included, is in the exit status."""
    for rank in (victim, other):
        rank.do("finalize", timeout=30)
        rank.start("exit")
    assert [rank.wait(20) for rank in (victim, other)] == [0, 0], victim.lines()


@pytest.fixture
def scene(tmp_path: Path, wires: list[Path]) -> Iterator[tuple[GarbageInjector, Rank, Rank]]:
    print(f"HARP_TEST_SEED={SEED}")
    sites = [
        wire_site(tmp_path / str(i), wire, i, timeout_ms=TIMEOUT_MS)
        for i, wire in enumerate(wires, 1)
    ]
    with GarbageInjector(*wires) as injector, Rank(sites[0]) as victim, Rank(sites[1]) as other:
        yield injector, victim.init(), other.init()


@pytest.mark.timeout(240)
def test_malformed_frames_are_counted_and_leak_nothing(
    scene: tuple[GarbageInjector, Rank, Rank],
) -> None:
    """Half of it gets past the checksum: it may end the links that are open, but nothing else."""
    injector, victim, other = scene
    listener = victim.listen()
    began, after_first = time.monotonic(), 0
    for number in range(ROUNDS):
        warm_up(victim, other, listener)
        before = counters(victim.site)["rx_frames"]
        injector.start_flood(COUNT // ROUNDS, SEED + number)
        wait_until(
            lambda: counters(victim.site)["rx_frames"] >= before + COUNT // ROUNDS,
            FLOOD_S, "not all frames were taken", [victim, other],
        )  # fmt: skip
        injector.finish_flood()
        after_first = after_first or resident_kib(victim)
    print(f"{COUNT} frames in {time.monotonic() - began:.1f} s")
    connect(other, victim, listener).move()
    connect(victim, other).move()
    wait_until(lambda: unaccounted(counters(victim.site)) == 0, 20, "frames that count nowhere")
    found = counters(victim.site)
    print({name: value for name, value in found.items() if value})
    assert all(found[name] for name in FATES if name.startswith("rx_drop_"))
    assert found["port_rx_lost"] == 0
    # A sanitizer keeps freed memory; it looks for leaks itself.
    assert "SANITIZER_RUNTIME" in os.environ or resident_kib(victim) < after_first + 16 * 1024
    end_well(victim, other)


def test_job_survives_frames_with_bad_checksums(scene: tuple[GarbageInjector, Rank, Rank]) -> None:
    """What a bad cable makes of frames has wrong checksums: not one byte of a job changes."""
    injector, victim, other = scene
    listener = victim.listen()
    warm_up(victim, other, listener)
    towards, back = connect(other, victim, listener), connect(victim, other)
    for number, link in enumerate((towards, back)):
        injector.start_flood(COUNT // 10, SEED + number, checksum_good=False)
        link.move(count=200, size=200_000, ms=60_000)
        injector.finish_flood()
    # ARP has no checksum: a damaged packet may claim the victim's address, and HARP says so.
    unexpected = [line for line in victim.warnings if "has begun to use" not in line]
    assert unexpected == other.warnings == []
    end_well(victim, other)
