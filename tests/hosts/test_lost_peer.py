# SPDX-License-Identifier: Apache-2.0
"""A rank is lost in the middle of a job: the other rank's requests fail in time, and its log names
the peer. A stop of less than timeout_ms does not fail the job."""

from __future__ import annotations

import os
import random
import re
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ranks import (
    REMOTE_ERROR,
    START_S,
    Failed,
    Perf,
    Rank,
    Site,
    connect,
    packet_site,
    remove_wire,
    wait_until,
    wire_path,
    wire_site,
)

from harp import paths
from tools.hosts.lab import Lab
from tools.hosts.ports import random_port

TIMEOUT_MS = 2500
SLACK_S = 2.2  # for a busy machine; a second try would end after another TIMEOUT_MS
LATE_S = 5.0  # the same, where the next event would be a quarter of a timeout_ms of a minute
SEED = int(os.environ.get("HARP_TEST_SEED") or secrets.randbits(32))
FULL = bool(os.environ.get("HARP_TEST_FULL"))
# Each mode with each of two versions; with a sanitizer each mode once.
KILLS = 24 if FULL else 3 if "SANITIZER_RUNTIME" in os.environ else 6
FEW_KILLS = (0, 4, 5)  # each mode and both versions
SLOW = pytest.mark.slow
EACH_MODE = pytest.mark.parametrize(
    "mode",
    ["kernel address", pytest.param("own address", marks=SLOW), pytest.param("wire", marks=SLOW)],
)
MODES = ["kernel address", "own address", "wire"]


@pytest.fixture
def wire() -> Iterator[Path]:
    """A wire. Its files are removed at the end, because a killed end leaves them."""
    path = wire_path()
    yield path
    remove_wire(path)


@pytest.fixture
def sites(mode: str, lab: Lab, wire: Path, tmp_path: Path) -> list[Site]:
    """The sites of two ranks; mode: the network between them."""
    if mode == "wire":
        return [wire_site(tmp_path / str(i), wire, i, timeout_ms=TIMEOUT_MS) for i in (1, 2)]
    own = mode == "own address"
    return [
        packet_site(tmp_path / str(host.index), host, own, timeout_ms=TIMEOUT_MS)
        for host in lab.hosts
    ]


def messages(site: Site) -> int:
    """The messages that the site's process has received so far."""
    return sum(process.totals["messages_in"] for process in site.published())


@contextmanager
def all_reduce(sites: list[Site], lab: Lab, api: int) -> Iterator[list[Perf]]:
    """Two ranks with flowing bytes, for longer than any test."""
    args = ["all_reduce", "-b", "4M", "-e", "4M", "-n", "10000000", "-w", "0"]
    args += ["--api", str(api), "--timeout", "30"]
    on_wire = not sites[0].prefix
    port = random_port()
    rendezvous = f"{'127.0.0.1' if on_wire else lab.hosts[0].address}:{port}"
    with Perf(sites[0], args, 0, rendezvous) as one, Perf(sites[1], args, 1, rendezvous) as other:
        for site in sites:
            wait_until(lambda: messages(site) > 20, START_S, "no bytes flow", [one, other])
        yield [one, other]


def fails_in_time(survivor: Perf, address: str, since: float, api: int) -> None:
    """Checks that the survivor's requests fail in time with the code for a lost peer, and that its
    log names the peer."""
    moment, line = survivor.wait_for_line(" failed after ", TIMEOUT_MS / 1e3 + 5)
    code = "ncclSystemError" if api == 4 else "ncclRemoteError"
    assert re.search(rf"(isend|irecv) of message \d+ of \d+ failed after .*: {code}$", line), line
    took = moment - since
    print(f"noticed after {took * 1e3:.0f} ms: {survivor.warnings}")
    assert took < TIMEOUT_MS / 1e3 + SLACK_S, f"{took:.3f} s"
    assert survivor.warnings
    for warning in survivor.warnings:
        assert re.search(rf"HARP: the link (to|from) {re.escape(address)}:\d+ failed: ", warning)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "number,mode",
    [
        pytest.param(n, MODES[n % len(MODES)], marks=() if n in FEW_KILLS else pytest.mark.slow)
        for n in range(KILLS)
    ],
)
def test_killed_rank_fails_peer_in_time(
    lab: Lab, sites: list[Site], number: int, mode: str
) -> None:
    draw = random.Random(SEED + number)
    api = (4, 12)[number // len(MODES) % 2]
    victim, delay = draw.randrange(2), draw.uniform(0, 0.5)
    print(f"HARP_TEST_SEED={SEED}: {mode}, v{api}, rank {victim} after {delay:.3f} s")
    with all_reduce(sites, lab, api) as ranks:
        time.sleep(delay)
        killed = ranks[victim].signal(signal.SIGKILL)
        fails_in_time(ranks[1 - victim], sites[victim].address, killed, api)
        assert ranks[1 - victim].wait() == 1
    assert list(sites[1 - victim].run_folder.glob("*.trace")), "no trace was written"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["wire"])
def test_perf_names_trace_while_it_waits_for_a_stopped_rank(lab: Lab, sites: list[Site]) -> None:
    """It waits for the stopped rank for as long as --timeout says. The trace is written after the
    last request has failed."""
    slow = paths.build_dir() / "tests" / "plugin" / "libslow.so"
    if "SANITIZER_RUNTIME" not in os.environ:  # it replaces the preloaded functions
        sites[0].environment.update({"LD_PRELOAD": str(slow), "SLOW_TRACE_MS": "100"})
    with all_reduce(sites, lab, 12) as ranks:
        ranks[1].signal(signal.SIGSTOP)
        ranks[0].wait_for_line(" failed after ", TIMEOUT_MS / 1e3 + 5)
        _, line = ranks[0].wait_for_line("harp stat --trace ", 3)
        assert ranks[0].process.poll() is None, "nothing was put to the test"
    (path,) = sites[0].run_folder.glob("*.trace")
    assert f"harp stat --trace {path}`" in line


@EACH_MODE
def test_stop_shorter_than_timeout_does_not_fail_job(lab: Lab, sites: list[Site]) -> None:
    """The stop is shorter than timeout_ms, so the job continues."""
    with all_reduce(sites, lab, 12) as ranks:
        for held in ranks:
            held.signal(signal.SIGSTOP)
            time.sleep(TIMEOUT_MS / 1e3 * 0.5)
            held.signal(signal.SIGCONT)
            before = [messages(site) for site in sites]
            wait_until(
                lambda: all(messages(s) > b + 100 for s, b in zip(sites, before)), START_S,
                "the job does not continue", ranks,
            )  # fmt: skip
        for rank in ranks:
            assert rank.process.poll() is None
            assert rank.warnings == []


@EACH_MODE
def test_stopped_rank_fails_peer_after_timeout(lab: Lab, sites: list[Site]) -> None:
    with all_reduce(sites, lab, 12) as ranks:
        stopped = ranks[1].signal(signal.SIGSTOP)
        fails_in_time(ranks[0], sites[1].address, stopped, 12)
        # Its peer has failed meanwhile: it must end with an error, not hang.
        awake = ranks[1].signal(signal.SIGCONT)
        fails_in_time(ranks[1], sites[0].address, awake, 12)
        assert [rank.wait() for rank in ranks] == [1, 1]


@EACH_MODE
@pytest.mark.parametrize("waits", ["sender", "receiver"])
def test_killed_peer_of_idle_link_is_noticed(sites: list[Site], waits: str) -> None:
    """A waiting receiver without data to send notices the death. So does a sender whose peer posts
    no receives."""
    with Rank(sites[0]) as sender, Rank(sites[1]) as receiver:
        sender.init()
        receiver.init()
        link = connect(sender, receiver)
        link.move()
        if waits == "receiver":
            survivor, victim = receiver, sender
            receiver.start("receive", link.receives, 4, 1 << 20, 10 * TIMEOUT_MS)
        else:
            survivor, victim = sender, receiver
            sender.start("send", link.sends, 32, 1 << 20, 10 * TIMEOUT_MS)
        time.sleep(0.2)
        killed = victim.signal(signal.SIGKILL)
        with pytest.raises(Failed) as failure:
            survivor.finish(TIMEOUT_MS / 1e3 + 5)
        took = time.monotonic() - killed
        print(f"noticed after {took * 1e3:.0f} ms")
        assert failure.value.code == REMOTE_ERROR
        assert took < TIMEOUT_MS / 1e3 + SLACK_S
        (warning,) = survivor.warnings
        assert f"{victim.site.address}:" in warning
        survivor.do("finalize")


@contextmanager
def one_waits(lab: Lab, folder: Path, who: str) -> Iterator[tuple[Rank, Rank]]:
    """A rank that waits for its peer, and the peer, with the default timeout_ms."""
    sites = [packet_site(folder / str(host.index), host) for host in lab.hosts]
    with Rank(sites[0]) as sender, Rank(sites[1]) as receiver:
        sender.init()
        receiver.init()
        link = connect(sender, receiver)
        link.move()
        if who == "receiver":
            receiver.start("receive", link.receives, 4, 1 << 20, 60_000)
            yield receiver, sender
        else:
            sender.start("send", link.sends, 32, 1 << 20, 60_000)
            yield sender, receiver


def notices(survivor: Rank, began: float, within_s: float) -> None:
    """Checks that the survivor's request fails within within_s of `began`."""
    with pytest.raises(Failed) as failure:
        survivor.finish(within_s + 20)
    took = time.monotonic() - began
    print(f"noticed after {took * 1e3:.0f} ms")
    assert failure.value.code == REMOTE_ERROR
    assert took < within_s + LATE_S


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("who", ["receiver", "sender", "sender whose peer was stopped before"])
def test_killed_process_is_noticed_within_1_s(lab: Lab, tmp_path: Path, who: str) -> None:
    """For any timeout_ms: the kernel of the killed process resets segments to the closed port. A
    rank notices also if it only waits, or if its segments had no answer for a while."""
    with one_waits(lab, tmp_path, who) as (survivor, victim):
        time.sleep(0.5)
        if "stopped" in who:
            victim.signal(signal.SIGSTOP)
            time.sleep(2.5)
        notices(survivor, victim.signal(signal.SIGKILL), 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("who", [pytest.param("receiver", marks=pytest.mark.sanitized), "sender"])
def test_dead_host_is_noticed_within_10_s(lab: Lab, tmp_path: Path, who: str) -> None:
    """For any timeout_ms: a dead host does not answer ARP, unlike a live kernel."""
    with one_waits(lab, tmp_path, who) as (survivor, victim):
        host = next(one for one in lab.hosts if one.address == victim.site.address)
        silent = "net.ipv4.conf.all.arp_ignore"
        began = victim.signal(signal.SIGSTOP)
        try:
            host.run(["sysctl", "-qw", f"{silent}=8"], timeout=5)
            notices(survivor, began, 10.0)
        finally:
            host.run(["sysctl", "-qw", f"{silent}=0"], timeout=5)
        (warning,) = survivor.warnings
        assert "does not answer ARP" in warning


@pytest.mark.parametrize("mode", ["kernel address"])
def test_slow_receiver_is_not_failed(sites: list[Site]) -> None:
    """A live receiver with a full window posts nothing for longer than timeout_ms. The sender
    waits."""
    with Rank(sites[0]) as sender, Rank(sites[1]) as receiver:
        sender.init()
        receiver.init()
        link = connect(sender, receiver)
        sender.start("send", link.sends, 24, 1 << 20, 10 * TIMEOUT_MS)
        time.sleep(TIMEOUT_MS / 1e3 + 1)
        receiver.start("receive", link.receives, 24, 1 << 20, 10 * TIMEOUT_MS)
        link.finish(10)
        assert sender.warnings == receiver.warnings == []
