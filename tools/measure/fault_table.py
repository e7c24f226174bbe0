# SPDX-License-Identifier: Apache-2.0
"""The table of faults: what happens to a job, and how the job must end."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tools.hosts.jobs import Job, Joint
from tools.hosts.ranks import TooLate, wait_until
from tools.hosts.unix_socket import cut
from tools.measure.fault_trials import (
    END_S,
    ERROR,
    FLOWS,
    OTHER,
    SOCKET,
    WENT_ON,
    Fault,
    Misbehaved,
    Missed,
    Trial,
)

AFTER_S = 1.0  # seconds: a fault that lasts longer than timeout_ms does so by this
FILL_S = 5.0  # seconds for packet memory to fill up


def kill(trial: Trial) -> None:
    victim = trial.one()
    trial.fails(1 - victim, trial.kill(victim))


def stop_short(trial: Trial) -> None:
    victim = trial.ranks[trial.one()]
    since = victim.signal(signal.SIGSTOP)
    time.sleep(trial.short())
    victim.signal(signal.SIGCONT)
    trial.was_short(since)


def stop_long(trial: Trial) -> None:
    victim = trial.one()
    trial.fails(1 - victim, trial.ranks[victim].signal(signal.SIGSTOP))
    # Its peer has given up meanwhile, so it must fail as well.
    trial.fails(victim, trial.ranks[victim].signal(signal.SIGCONT))


@contextmanager
def _link_down(trial: Trial) -> Iterator[float]:
    assert trial.lab
    host = trial.lab.hosts[trial.one()]
    try:
        host.set_link(False)
        yield time.monotonic()
    finally:
        host.set_link(True)
        trial.lab.await_links()


def link_short(trial: Trial) -> None:
    began = time.monotonic()
    with _link_down(trial):
        time.sleep(trial.short())
    trial.was_short(began)


def link_long(trial: Trial) -> None:
    with _link_down(trial) as since:
        for number in (0, 1):
            trial.fails(number, since)


def blackhole_one_flow(running: Job, joint: Joint, draw: random.Random) -> float:
    """Drops one flow's packets from now on. Returns the seconds until HARP replaced the flow."""
    site = draw.randrange(2)
    before = running.count(site, "flows_replaced")
    flow = running.grows(draw.randrange(FLOWS), site)
    joint.blackhole(flow, draw.choice(("tx", "rx", "both")))
    return running.await_count(site, "flows_replaced", before + 1)


def blackhole_one(trial: Trial) -> None:
    blackhole_one_flow(trial.job, trial.joint, trial.draw)


def blackhole_all(trial: Trial) -> None:
    trial.joint.impair("blackhole=1,side=both")
    since = time.monotonic()
    for number in (0, 1):
        trial.fails(number, since)


def replaced(trial: Trial) -> None:
    """The new process belongs to a new job, which must succeed."""
    victim = trial.one()
    since = trial.kill(victim)
    trial.ranks[victim].wait(END_S)  # its claims end with the process
    with trial.another_job() as start:
        ranks = [start(victim)]
        if trial.shared:
            ranks.append(start(1 - victim))
        trial.fails(1 - victim, since)
        if not trial.shared:
            trial.ended(trial.ranks[1 - victim], 1)
            ranks.append(start(1 - victim))
        for rank in ranks:
            trial.ended(rank, 0)


def config_removed(trial: Trial) -> None:
    for site in trial.joint.sites:
        for path in site.folder.glob("ztcp*.conf"):
            path.unlink()


def memory(trial: Trial) -> None:
    """A rank's application pauses: its peer's data fills packet memory meanwhile and exceeds
    it."""
    victim = trial.one()
    before = trial.job.count(victim, "tcp_memory_drops")
    trial.ranks[victim].signal(signal.SIGUSR1)

    def exhausted() -> bool:
        count = trial.job.look()[victim]
        full = count["packets_used"] >= 0.95 * count["packets_total"]
        return full or count["tcp_memory_drops"] > before

    try:
        wait_until(exhausted, FILL_S, "packet memory does not fill up", trial.ranks)
    except TooLate as late:  # the pause ended before the peer could send enough
        raise Missed(str(late)) from None


def fill(trial: Trial) -> None:
    """Fills both run folders up to the last byte."""
    for site in trial.joint.sites:
        with open(site.run_folder / "filler", "wb", buffering=0) as file:
            try:
                while file.write(bytes(65536)):
                    pass
            except OSError:
                continue


def folder_full_killed(trial: Trial) -> None:
    """Fills the run folders and kills a rank: no room is left for the error's trace."""
    fill(trial)
    kill(trial)
    for site in trial.joint.sites:
        if list(site.run_folder.glob("*.trace")):
            raise Misbehaved(OTHER, "the run folder was not full: a trace is there")


def device_closed(trial: Trial) -> None:
    """Shuts down only the socket that joins the devices. Both ranks stay alive."""
    site, rank = trial.joint.sites[0], trial.ranks[0]
    cut(rank.process.pid, site.folder.parent / SOCKET)
    since = time.monotonic()
    for number in (0, 1):
        trial.fails(number, since)


@contextmanager
def _nics_down(trial: Trial, nics: Sequence[int]) -> Iterator[float]:
    """Sets NICs of one of several-NIC hosts down."""
    assert trial.rails
    host = trial.rails.lab.hosts[trial.one()]
    try:
        for nic in nics:
            trial.rails.set_link(host, nic, False)
        yield time.monotonic()
    finally:
        for nic in nics:
            trial.rails.set_link(host, nic, True)


def _one_nic(trial: Trial) -> list[int]:
    assert trial.rails
    return [trial.draw.randrange(trial.rails.count)]


def nic_short(trial: Trial) -> None:
    with _nics_down(trial, _one_nic(trial)):
        time.sleep(trial.short())


def nic_long(trial: Trial) -> None:
    """The job must not notice, however long the NIC is down."""
    with _nics_down(trial, _one_nic(trial)):
        time.sleep(trial.timeout_s + AFTER_S)
        trial.lives()


def nics_long(trial: Trial) -> None:
    assert trial.rails
    with _nics_down(trial, range(trial.rails.count)) as since:
        for number in (0, 1):
            trial.fails(number, since)


def blackhole_flow_of_nic(trial: Trial) -> None:
    """Drops one flow's packets on NIC 0 from now on. HARP replaces the flow, or moves it to another
    NIC: the address of its end changes."""
    site = trial.draw.randrange(2)
    address = trial.joint.addresses_of(site)[0]
    number = trial.draw.randrange(FLOWS)
    flow = trial.job.grows(number, site, address)
    trial.joint.blackhole(flow, trial.draw.choice(("tx", "rx", "both")))

    def gone() -> bool:
        found = trial.job.sending(site, address).get(number)
        return not found or found.local != flow.local

    wait_until(gone, trial.timeout_s + END_S, "the flow keeps its connection", trial.ranks)


def blackhole_nic(trial: Trial) -> None:
    """Drops all packets of a NIC that stays up, for longer than timeout_ms."""
    trial.joint.impair("blackhole=1,side=both")
    time.sleep(trial.timeout_s + AFTER_S)
    trial.lives()


def blackhole_nics(trial: Trial) -> None:
    trial.joint.impair("blackhole=1,side=both", all_nics=True)
    since = time.monotonic()
    for number in (0, 1):
        trial.fails(number, since)


PACKET = ("packet", "packet-own", "xdp")

FAULTS = (
    Fault("kill", "a rank is killed", ERROR, kill),
    Fault("stop-short", "a rank is stopped for less than timeout_ms", WENT_ON, stop_short),
    Fault("stop-long", "a rank is stopped for longer", ERROR, stop_long),
    Fault("link-short", "a host's link is down for less than timeout_ms", WENT_ON, link_short,
          transports=PACKET),
    Fault("link-long", "a host's link is down for longer", ERROR, link_long, transports=PACKET),
    Fault("blackhole-one", "all packets of one flow of four are dropped", WENT_ON, blackhole_one,
          1, {"flows": FLOWS}),
    Fault("blackhole-all", "all packets are dropped", ERROR, blackhole_all,
          keys={"flows": FLOWS}),
    Fault("device-closed", "both ranks' devices are closed", ERROR, device_closed,
          transports=("ethdev",)),
    Fault("replaced", "another process takes a killed rank's address", ERROR, replaced,
          transports=PACKET),
    Fault("config-removed", "both configurations are removed", WENT_ON, config_removed),
    # Packet memory has 16 MiB. A rank sends the first 20 MiB of an iteration without waiting for
    # its peer.
    Fault("memory", "a rank's packet memory is exhausted", WENT_ON, memory, keys={"flows": 8},
          size="40M", rate=2.0, args=("--step", "10M", "--pause", "600")),
    Fault("folder-full", "both run folders are full", WENT_ON, fill, run_folder_kib=1024),
    Fault("folder-full-killed", "the same, and then a rank is killed", ERROR, folder_full_killed,
          run_folder_kib=1024),
)  # fmt: skip

BY_NAME = {fault.name: fault for fault in FAULTS}

# The faults of hosts with several NICs. A fault on one NIC must not end the job.
RAIL_FAULTS = (
    *(BY_NAME[name] for name in ("kill", "stop-short", "stop-long")),
    Fault("nic-short", "one NIC of a host is down for less than timeout_ms", WENT_ON, nic_short),
    Fault("nic-long", "one NIC of a host is down for longer", WENT_ON, nic_long, beyond=True),
    Fault("nics-long", "all NICs of a host are down for longer", ERROR, nics_long),
    Fault("blackhole-one", "all packets of one flow of a NIC are dropped", WENT_ON,
          blackhole_flow_of_nic, keys={"flows": FLOWS}),
    Fault("blackhole-nic", "all packets of one NIC are dropped", WENT_ON, blackhole_nic,
          keys={"flows": FLOWS}, beyond=True),
    Fault("blackhole-all", "all packets of all NICs are dropped", ERROR, blackhole_nics,
          keys={"flows": FLOWS}),
    *(BY_NAME[name] for name in ("replaced", "config-removed")),
    # Each NIC has packet memory of its own, and each channel half of the message.
    replace(BY_NAME["memory"], size="80M"),
    *(BY_NAME[name] for name in ("folder-full", "folder-full-killed")),
)  # fmt: skip
