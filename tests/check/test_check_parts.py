# SPDX-License-Identifier: Apache-2.0
"""The parts of `harp check` that need no host: schedules, blame, slow links, places of ranks."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harp.check import (
    agree,
    blame,
    broken,
    expect,
    facts,
    frames,
    launcher,
    reach,
    report,
    run,
    slow,
    tournament,
)
from harp.check.hosts import Host
from harp.check.pace import Pace
from harp.check.rendezvous import Rendezvous, RendezvousError
from harp.setup import arp, host, sysfs


def hosts(count: int, **facts: Any) -> list[Host]:
    nic = {"mtu": 9000, "interface": "eth0", "device": "packet:eth0", "mtu_key": False}
    base: dict[str, Any] = {
        "devices": [{"name": "HARP0", "identity": "eth0", "speed_mbps": 10000}], "nics": [nic],
        "gpus": [], "key": "", "key_file": "", "checksum": False, "release": "1", "plugin": "",
        "state": "enabled", "doctor": [],
    }  # fmt: skip
    return [Host(i, f"gpu{i}", (i,), {**base, **facts}) for i in range(count)]


# -- schedules


@pytest.mark.parametrize("count", [2, 3, 8, 63, 64])
def test_tournament_has_each_pair_once_and_no_rank_twice_in_a_round(count: int) -> None:
    rounds = tournament.rounds(range(count))
    pairs = [pair for one in rounds for pair in one]
    assert sorted(pairs) == list(itertools.combinations(range(count), 2))
    assert len(rounds) == count - 1 + count % 2
    for one in rounds:
        ranks = [rank for pair in one for rank in pair]
        assert len(ranks) == len(set(ranks))


@pytest.mark.parametrize("ranks, count", [(64, 64), (64, 8), (64, 16), (8, 4), (7, 3), (8, 1)])
def test_no_host_has_two_pairs_while_one_pair_is_measured(ranks: int, count: int) -> None:
    host_of = [rank * count // ranks for rank in range(ranks)]
    slots = tournament.one_by_one(range(ranks), host_of)
    pairs = [pair for slot in slots for pair in slot]
    assert sorted(pairs) == list(itertools.combinations(range(ranks), 2))
    for slot in slots:
        used = [host for a, b in slot for host in {host_of[a], host_of[b]}]
        assert len(used) == len(set(used))


@pytest.mark.parametrize("count", [64, 16, 8])
def test_64_ranks_are_measured_in_half_a_minute(count: int) -> None:
    """The rest of the minute is for the hosts' own checks, probes and opening links."""
    host_of = [rank * count // 64 for rank in range(64)]
    alone, together = tournament.one_by_one(range(64), host_of), tournament.rounds(range(64))
    now = 0.0
    for bound, slots in ((run.ALONE_S, alone), (run.TOGETHER_S, together)):
        pace = Pace(bound, len(slots), lambda: now)
        for _ in slots:
            seconds = pace.next()
            assert 0.02 <= seconds <= 0.2
            now += seconds + 0.01  # a step of the rendezvous
    assert 10 < now < 30


def test_suspects_are_measured_alone_again() -> None:
    slots = tournament.again([(0, 1), (0, 2), (3, 4), (1, 2)], [0, 1, 2, 3, 4])
    assert slots == [[(0, 1), (3, 4)], [(0, 2)], [(1, 2)]]


# -- blame


def test_host_with_most_bad_links_is_blamed() -> None:
    bad = [(2, other) for other in (0, 1, 3)]
    found = blame.find(bad, range(4))
    assert list(found.hosts) == [2] and not found.links
    assert blame.direction(2, found.hosts[2]) == "from"
    assert blame.direction(2, [(0, 2)]) == "to"
    assert blame.direction(2, [(0, 2), (2, 0)]) == "with"


def test_single_link_blames_no_host() -> None:
    found = blame.find([(0, 1), (1, 0)], range(4))
    assert not found.hosts and found.links == [(0, 1), (1, 0)]


# -- slow links


def rates(count: int, value: float) -> dict[tuple[int, int], float]:
    return dict.fromkeys(itertools.permutations(range(count), 2), value)


PLACES = [slow.Place(number, 0) for number in range(4)]


def test_slow_link_is_named_and_no_host() -> None:
    measured = rates(4, 10.0) | {(1, 3): 1.0}
    texts = [f"{one.about}: {one.text}" for one in slow.judge(hosts(4), measured, PLACES, [])]
    assert len(texts) == 1 and texts[0].startswith("slow link: from gpu1 to gpu3: 1 Gbit/s")
    assert slow.suspects(measured, PLACES, []) == [(1, 3)]


def test_slow_host_is_named_and_no_link() -> None:
    measured = {pair: 1.0 if 2 in pair else 10.0 for pair in rates(4, 0)}
    texts = [f"{one.about}: {one.text}" for one in slow.judge(hosts(4), measured, PLACES, [])]
    assert len(texts) == 1 and texts[0].startswith("slow host: gpu2: 1 Gbit/s on links with it")


def test_rate_of_other_links_is_said_to_be_that_of_the_second_measurement() -> None:
    """It may be far below the rates in the report's matrix, because the hosts are busier then."""
    measured = {pair: 0.1 if 2 in pair else 10.0 for pair in rates(4, 0)}
    (found,) = slow.judge(hosts(4), measured, PLACES, [4.0])
    assert "0.1 Gbit/s on links with it, and 4 on good ones measured beside them" in found.text
    (found,) = slow.judge(hosts(4), rates(4, 10.0) | {(1, 3): 0.1}, PLACES, [4.0])
    assert "gpu3: 0.1 Gbit/s, and 4 on good ones measured beside them" in found.text


def test_slow_rail_is_not_hidden_by_the_other_rail() -> None:
    places = [slow.Place(rank // 2, rank % 2) for rank in range(8)]
    measured = {pair: 1.0 if 5 in pair else 10.0 for pair in rates(8, 0)}
    texts = [one.text for one in slow.judge(hosts(4), measured, places, [])]
    assert len(texts) == 1 and "gpu2" in texts[0]


def test_link_as_slow_as_good_ones_beside_it_is_good() -> None:
    measured = rates(4, 10.0) | {(1, 3): 2.0}
    assert list(slow.judge(hosts(4), measured, PLACES, []))
    assert not list(slow.judge(hosts(4), measured, PLACES, [4.0, 5.0, 3.0]))
    assert not list(slow.judge(hosts(2), {(0, 1): 10.0, (1, 0): 1.0}, PLACES, []))


def test_host_that_stays_below_half_of_a_good_rate_is_noted() -> None:
    """Such as one with a CPU quota. It is no fault, and no note before a second measurement."""
    measured = {pair: 3.6 if 2 in pair else 10.0 for pair in rates(4, 0)}
    assert not list(slow.judge(hosts(4), measured, PLACES, []))
    (found,) = slow.judge(hosts(4), measured, PLACES, [10.0])
    assert (found.level, found.about) == ("note", "slower host")
    assert found.text.startswith("gpu2: 3.6 Gbit/s on links with it") and "quota" in found.text
    (found,) = slow.judge(hosts(4), rates(4, 10.0) | {(1, 3): 4.0}, PLACES, [10.0])
    assert (found.level, found.about) == ("note", "slower link")
    places = [slow.Place(number, 0) for number in range(6)]
    both = {pair: 1.0 if 3 in pair else 3.6 if 2 in pair else 10.0 for pair in rates(6, 0)}
    told = [(one.level, one.text[:5]) for one in slow.judge(hosts(6), both, places, [10.0])]
    assert told == [("fault", "gpu3:"), ("note", "gpu2:")]


# -- what hosts agree on


def test_no_host_is_blamed_without_a_majority() -> None:
    two = hosts(1)[:1] + hosts(2, checksum=True)[1:]
    texts = [one.text for one in agree.compare(two, [one.facts for one in two])]
    assert len(texts) == 1 and texts[0].startswith("the hosts differ (gpu0: no HARP_CHECKSUM; gpu1")


def test_missing_rail_is_named() -> None:
    three = hosts(3)
    three[1].facts["devices"] = three[1].facts["devices"] * 2
    found = agree.compare(three, [one.facts for one in three])
    assert [one.text for one in found if one.text.startswith("gpu1: 2 devices, and 1 devices")]


def test_words_of_plugin_tell_reset_from_swallowed() -> None:
    said = {(0, 1): "HARP: no process listens on the peer's port: ...", (1, 2): "swallowed: x"}
    texts = [one.text for one in broken.links(hosts(3), said)]
    assert any("from gpu0 to gpu1 is reset: a firewall rejects it" in text for text in texts)
    assert any("from gpu1 to gpu2 is swallowed" in text for text in texts)


def test_each_answer_of_the_kernel_is_told_apart() -> None:
    ends = {(0, 1): reach.RESET, (1, 2): reach.SWALLOWED, (2, 0): reach.ANSWERED}
    texts = [one.text for one in reach.judge(hosts(3), ends)]
    assert len(texts) == 2
    assert "from gpu0 to gpu1 is reset" in texts[0]
    assert "from gpu1 to gpu2 is swallowed" in texts[1]


def test_frames_that_do_not_pass_at_all_say_nothing_of_the_mtu() -> None:
    assert not list(frames.judge(hosts(3), {(0, 1): {0: 0}, (1, 2): {0: 9000}}))
    found = list(frames.judge(hosts(3), {(0, 1): {0: 1500}}))
    assert len(found) == 1 and "1500 bytes pass, and 9000 do not" in found[0].text
    assert frames.sizes(9000, 1500) == [256, 1280, 1400, 1500]


def test_expected_bandwidth_is_that_of_the_slowest_part() -> None:
    two = [*hosts(1, gpus=[{"pci": "0000:01:00.0", "pcie_gbit": 4.0}]), hosts(2)[1]]
    assert expect.of_host(two[0]).gbit == 4.0
    assert "The limit is the PCIe of the GPUs of gpu0" in expect.sentences(two, {}, [0, 1])[0]
    measured = {(0, 1): 2.0, (1, 0): 1.0}
    assert "1 Gbit/s into gpu0, the slowest: 25 %" in expect.sentences(two, measured, [0, 1])[1]
    measured = {(0, 1): 2.0, (1, 0): 0.01}
    assert "the slowest: 0.2 % of that" in expect.sentences(two, measured, [0, 1])[1]


def test_assumed_speed_of_a_nic_is_no_bound() -> None:
    nic = {"name": "HARP0", "identity": "eth0", "speed_mbps": 25000}
    two = [hosts(2)[0], hosts(2, devices=[{**nic, "speed_known": False}])[1]]
    assert expect.sentences(two, {(0, 1): 2.0, (1, 0): 30.0}, [0, 1]) == [
        "What would NCCL get: the NIC's speed is unknown on gpu1 (set speed_mbps).",
        "Measured, all ranks at once: 2 Gbit/s into gpu1, the slowest.",
    ]


def test_no_host_limits_the_bandwidth_if_all_are_alike() -> None:
    assert "The limit is the NICs of each host: 1 rail" in expect.sentences(hosts(2), {}, [0, 1])[0]


@pytest.mark.parametrize("value", [0.0, 0.000123, 0.00565, 0.0123, 0.718, 4.7, 99.96, 12345.6])
def test_columns_of_a_matrix_stay_apart(value: float) -> None:
    assert len(report.cell(value)) <= 6
    assert float(report.cell(value)) == pytest.approx(value, rel=0.005, abs=0.00005)


def test_no_bandwidth_is_expected_of_hosts_without_a_nic() -> None:
    two = [hosts(2)[0], hosts(2, devices=[])[1]]
    assert expect.sentences(two, {}, [0, 1]) == [
        "What would NCCL get: unknown, because HARP has no NIC on gpu1."
    ]


def test_report_says_that_a_single_pair_of_hosts_is_not_judged() -> None:
    rates = {(0, 1): 2.0, (1, 0): 1.0}
    assert "two hosts alone" in expect.sentences(hosts(2), rates, [0, 1])[2]
    assert len(expect.sentences(hosts(3), rates, [0, 1, 2])) == 2


def test_ranks_that_decline_say_what_becomes_of_the_job() -> None:
    (half,) = agree.declined(hosts(2), ["no NIC", ""])
    assert half.text == (
        "gpu0: declines on rank 0, and NCCL ends a job with HARP on some of its hosts only: no NIC"
    )
    texts = [one.text for one in agree.declined(hosts(2), ["no NIC", "off"])]
    assert len(texts) == 2 and all("which leaves NCCL its sockets: " in text for text in texts)


def test_host_that_is_disabled_is_named_once() -> None:
    three = hosts(3)
    three[1].facts["state"] = "off"
    why = ["", "init of libnccl-net.so: ncclResult 2", ""]
    found = [*agree.compare(three, [one.facts for one in three]), *agree.declined(three, why)]
    assert len(found) == 1 and found[0].text.startswith("gpu1: HARP_DISABLE is set")


def test_no_host_is_blamed_because_harprun_is_not_in_front_of_the_check() -> None:
    three = hosts(3, state="absent")
    three[1].facts["state"] = "off"
    found = agree.compare(three, [one.facts for one in three])
    assert len(found) == 1 and found[0].text.startswith("gpu1: HARP_DISABLE is set")
    three[2].facts["state"] = "enabled"
    texts = [one.text for one in agree.compare(three, [one.facts for one in three])]
    assert [text[:4] for text in texts] == ["gpu0", "gpu1"]


# -- ranks


LAUNCHERS = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
]


@pytest.mark.parametrize("names", LAUNCHERS, ids=lambda names: names[0])
def test_launchers_tell_rank_and_rendezvous(names: tuple[str, str]) -> None:
    told = {names[0]: "3", names[1]: "8", "MASTER_ADDR": "gpu1", "MASTER_PORT": "29500"}
    assert launcher.find(None, None, None, told) == launcher.Place(3, 8, "gpu1", "29501")
    assert launcher.find(2, 4, "unix:/x:y", told) == launcher.Place(2, 4, "unix", "/x:y")
    told = {names[0]: "3", names[1]: "8", "MASTER_ADDR": "gpu1"}
    assert launcher.find(None, None, None, told).port == "29411"


@pytest.mark.parametrize(
    "nodes, first",
    [
        ("gpu1", "gpu1"),
        ("gpu2,gpu1", "gpu2"),
        ("gpu[03-05,9],login", "gpu03"),
        ("gpu[9,03-05]-ib", "gpu9-ib"),
        ("rack[2-3]node[07,10-11],x", "rack2node07"),
        ("gpu-a[1-2]", "gpu-a1"),
        ("", ""),
    ],
)
def test_slurms_lists_of_nodes_have_a_first_node(nodes: str, first: str) -> None:
    assert launcher.first_node(nodes) == first


def of_step(**more: str) -> dict[str, str]:
    """Variables of a step of 8 tasks on gpu3 and gpu4, which srun started on a login node."""
    return {
        "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "8",
        "SLURM_STEP_NODELIST": "gpu[3-4]", "SLURM_JOB_NODELIST": "gpu[1-4]",
        "SLURM_LAUNCH_NODE_IPADDR": "10.0.3.7", "SLURMD_NODENAME": "gpu3", **more,
    }  # fmt: skip


def test_ranks_of_slurm_meet_on_the_first_node() -> None:
    def place(**more: str) -> launcher.Place:
        return launcher.find(None, None, None, of_step(**more))

    assert place() == launcher.Place(0, 8, "gpu3", "29411", everywhere=True)
    assert place(MASTER_ADDR="gpu1") == launcher.Place(0, 8, "gpu1", "29411")
    # mpirun's helpers are the tasks of this step, as many as there are ranks, and mpirun started
    # rank 0 itself.
    helpers = {"SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NODELIST": "gpu[2-9]"}
    mpirun = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "8", **helpers}
    assert place(**mpirun) == launcher.Place(1, 8, "gpu1", "29411", everywhere=True)
    with pytest.raises(launcher.Unknown, match="rank 0 on gpu4 and not on gpu3, .*: set MASTER_A"):
        place(SLURMD_NODENAME="gpu4")


def test_rank_0_of_slurm_listens_on_all_addresses() -> None:
    """Its node's name is that of another address."""
    place = launcher.Place(0, 2, "192.0.2.1", "0", everywhere=True)
    with Rendezvous(place)._listener() as listener:
        assert listener.getsockname()[0] == "0.0.0.0"
    with pytest.raises(RendezvousError, match="cannot listen on 192.0.2.1"):
        Rendezvous(replace(place, everywhere=False))._listener()


@pytest.mark.parametrize(
    "rank, ranks, rendezvous, said",
    [
        (None, None, "a:1", "give --rank and --ranks, or start it by mpirun"),
        (8, 8, "a:1", "--rank 8 of 8 ranks"),
        (0, 1, "a:1", "one rank has no other to check with"),
        (0, 8, None, "give --rendezvous HOST:PORT, or set MASTER_ADDR"),
        (0, 8, "a:70000", "a port is a number from 1 to 65535"),
    ],
)
def test_wrong_places_are_refused(rank: Any, ranks: Any, rendezvous: Any, said: str) -> None:
    with pytest.raises(launcher.Unknown, match=said):
        launcher.find(rank, ranks, rendezvous, {})


def join(folder: Path, rank: int, ranks: int) -> Rendezvous:
    return Rendezvous(launcher.Place(rank, ranks, "unix", str(folder / "rendezvous")))


def test_rank_that_goes_silent_is_lost_and_others_go_on(tmp_path: Path) -> None:
    lead, other, silent = (join(tmp_path, rank, 3) for rank in range(3))
    replies: list[Any] = []

    def follow() -> None:
        other.open(20, lambda _: None)
        replies.append(other.step("b", lambda _: None))

    threads = [
        threading.Thread(target=follow, daemon=True),
        threading.Thread(target=lambda: silent.open(20, lambda _: None), daemon=True),
    ]
    for thread in threads:
        thread.start()
    lead.open(20, lambda _: None)
    begun = time.monotonic()
    replies.append(lead.step("a", tuple, 3.0))
    for thread in threads:
        thread.join(20)
    assert replies == [["a", "b", None]] * 2
    assert list(lead.lost) == [2] and "silent" in lead.lost[2]
    assert time.monotonic() - begun < 15
    for one in (lead, other, silent):
        one.close()


def test_second_rank_of_a_number_is_refused(tmp_path: Path) -> None:
    lead, one, twin = join(tmp_path, 0, 3), join(tmp_path, 1, 3), join(tmp_path, 1, 3)

    def come(rank: Rendezvous) -> None:
        rank.open(20, lambda _: None)

    threads = [threading.Thread(target=come, args=(rank,), daemon=True) for rank in (one, twin)]
    for thread in threads:
        thread.start()
    with pytest.raises(RendezvousError, match="came as 1 of 3, which is not free among 3 ranks"):
        lead.open(20, lambda _: None)
    for thread in threads:
        thread.join(20)
    for rank in (lead, one, twin):
        rank.close()


def test_only_the_mac_of_another_host_is_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found without a question for each interface: one that vanishes would end the check."""
    for name, mac in (("eth0", "02:00:00:00:00:01"), ("eth1", "02:00:00:00:00:02")):
        folder = tmp_path / "sys/class/net" / name
        folder.mkdir(parents=True)
        (folder / "address").write_text(f"{mac}\n")

    def refuse(*args: str) -> str:
        raise host.HostError("no such interface")

    monkeypatch.setattr(sysfs, "ROOT", tmp_path)
    monkeypatch.setattr(host, "ip", refuse)
    mine = host.Interface("eth0", True, True, True, 1500, "02:00:00:00:00:01", "", False, [])
    for found, said in (("02:00:00:00:00:02", ""), ("02:00:00:00:00:03", "02:00:00:00:00:03")):
        monkeypatch.setattr(arp, "holder", lambda *_, found=found: found)
        assert facts._conflict(mine, "10.0.0.1") == said
