# SPDX-License-Identifier: Apache-2.0
"""All that a process claims: the file of its home NIC, and those of the other NICs that it may
drive."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Optional

import pytest
from machines import Machine, configure

from harp import _tables
from harp.testing import _engine

# Claims at the first line of its input, tells the files as JSON, and holds them until its input
# ends.
RANK = """
import json, sys
from harp.testing import _engine
print("ready", flush=True)
sys.stdin.readline()
try:
    claims = _engine.Claims(sys.argv[1].encode())
    told = claims.files()
except RuntimeError as declined:
    told = str(declined)
print(json.dumps(told), flush=True)
sys.stdin.read()
"""

Files = list[tuple[str, int]]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A host whose sysfs shows nothing, so ranks choose by their number."""
    return Machine(tmp_path / "root")


def own(number: int) -> str:
    return f"nic{number} address = 10.0.{number}.1/24"


@contextmanager
def rank(
    machine: Machine, number: Optional[int] = None, size: Optional[int] = None
) -> Iterator[Files]:
    """Claims as a local rank of so many; a lock belongs to a descriptor, so one process can play
    all ranks."""
    with pytest.MonkeyPatch.context() as patch:
        if number is not None:
            patch.setenv("LOCAL_RANK", str(number))
        if size is not None:
            patch.setenv("LOCAL_WORLD_SIZE", str(size))
        claims = _engine.Claims(str(machine.root).encode())
    yield claims.files()
    claims.release()


def names(files: Files) -> list[str]:
    return [Path(path).stem for path, _ in files]


def all_ranks(machine: Machine, size: int, order: Optional[list[int]] = None) -> dict[int, Files]:
    """What each local rank claims, when they start in this order."""
    with ExitStack() as stack:
        return {
            number: stack.enter_context(rank(machine, number, size))
            for number in order or range(size)
        }


# -- shareable NICs


@pytest.mark.parametrize("size", [1, 2, 9, None], ids=["1", "2", "9", "unknown"])
def test_every_rank_claims_all_shareable_nics(
    size: Optional[int], machine: Machine, conf_dir: Path
) -> None:
    """Also more ranks than NICs, and an unknown number of ranks."""
    configure(conf_dir, "nic0", "nic1", "nic2")
    with rank(machine, 1, size) as first, rank(machine, 1, size) as second:
        for files in (first, second):
            assert names(files)[0] == "ztcp1", "the home NIC is first"
            assert sorted(names(files)) == ["ztcp0", "ztcp1", "ztcp2"]
            assert all(int(Path(path).stem[4:]) == device for path, device in files)


def test_home_nic_is_the_nearest(
    machine: Machine, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        machine.gpu(f"pci000{number}:10/000{number}:10:01.0", node=number)
        machine.nic(f"nic{number}", f"pci000{number}:10/000{number}:10:02.0", node=number)
    configure(conf_dir, "nic2", "nic0", "nic1")
    homes = [all_ranks(machine, 3)[number][0] for number in range(3)]
    assert [Path(path).stem for path, _ in homes] == ["ztcp1", "ztcp2", "ztcp0"]
    assert [device for _, device in homes] == [1, 2, 0]


def test_one_file_of_each_nic_is_claimed(machine: Machine, conf_dir: Path) -> None:
    """Two files of a NIC would be two engines on one interface."""
    configure(conf_dir, "nic0", "nic0 flows = 2", "nic1", "nic0 flows = 3", "nic1 flows = 4")
    for number in range(5):
        with rank(machine, number) as files:
            assert names(files)[0] == f"ztcp{number}"
            assert sorted(device for _, device in files) == [0, 1]


def test_nic_with_shareable_and_exclusive_file_is_claimed_once(
    machine: Machine, conf_dir: Path
) -> None:
    configure(conf_dir, own(0), "nic0", own(1))
    with rank(machine, 0, 1) as files:
        assert names(files) == ["ztcp0", "ztcp2"]
    with rank(machine, 1, 1) as files:
        assert names(files) == ["ztcp1", "ztcp2"]


# -- exclusive NICs


@pytest.mark.parametrize(
    "nics, ranks, shares",
    [
        (1, 1, [1]),
        (8, 1, [8]),
        (8, 2, [4, 4]),
        (8, 3, [3, 3, 2]),
        (7, 4, [2, 2, 2, 1]),
        (4, 4, [1, 1, 1, 1]),
    ],
)
def test_ranks_divide_exclusive_nics(
    nics: int, ranks: int, shares: list[int], machine: Machine, conf_dir: Path
) -> None:
    """Low ranks get the remainder. The order in which ranks start does not matter."""
    configure(conf_dir, *map(own, range(nics)))
    for seed in range(4):
        order = random.Random(seed).sample(range(ranks), ranks)
        claimed = all_ranks(machine, ranks, order)
        assert [len(claimed[number]) for number in range(ranks)] == shares
        everything = [name for files in claimed.values() for name in names(files)]
        assert sorted(everything) == sorted(f"ztcp{number}" for number in range(nics))


def test_unknown_number_of_ranks_leaves_other_exclusive_nics(
    machine: Machine, conf_dir: Path
) -> None:
    """A rank that starts later would find no NIC."""
    configure(conf_dir, *map(own, range(4)))
    with rank(machine) as first, rank(machine, 3) as second:
        assert (names(first), names(second)) == (["ztcp0"], ["ztcp3"])


def test_more_ranks_than_exclusive_nics_decline(machine: Machine, conf_dir: Path) -> None:
    configure(conf_dir, *map(own, range(2)))
    with pytest.raises(RuntimeError, match="2 files for 3 local ranks"):
        all_ranks(machine, 3)


def test_nearest_exclusive_nics_are_claimed_first(machine: Machine, conf_dir: Path) -> None:
    """Two ranks, each with two NICs on its own socket."""
    for node in range(2):
        machine.gpu(f"pci000{node}:10/000{node}:10:01.0", node=node)
        for number in (node, node + 2):
            machine.nic(f"nic{number}", f"pci000{node}:2{number}/000{node}:2{number}:02.0", node)
    configure(conf_dir, *map(own, range(4)))
    for order in ([0, 1], [1, 0]):
        claimed = all_ranks(machine, 2, order)
        assert {number: set(names(files)) for number, files in claimed.items()} == {
            0: {"ztcp0", "ztcp2"},
            1: {"ztcp1", "ztcp3"},
        }


# -- both kinds


def test_ranks_share_some_nics_and_divide_the_others(machine: Machine, conf_dir: Path) -> None:
    dpdk = [f"dpdk:0000:1{number}:00.0 address = 10.1.{number}.1/24" for number in range(4)]
    configure(conf_dir, "nic0", *dpdk, "nic1")
    for order in ([0, 1], [1, 0]):
        claimed = all_ranks(machine, 2, order)
        for files in claimed.values():
            assert {"ztcp0", "ztcp5"} <= set(names(files))
            assert len(files) == 4
        divided = [set(names(files)) - {"ztcp0", "ztcp5"} for files in claimed.values()]
        assert set.union(*divided) == {"ztcp1", "ztcp2", "ztcp3", "ztcp4"}


@pytest.mark.parametrize("seed", range(40))
def test_claims_of_any_host_are_consistent(seed: int, machine: Machine, conf_dir: Path) -> None:
    """Random files, ranks and orders of start: each rank has a home NIC, no exclusive file serves
    two ranks, no rank has two files of one NIC, and all ranks share what is shareable."""
    draw = random.Random(seed)
    count = draw.randrange(1, 9)
    kinds = [draw.choice(("shared", "exclusive")) for _ in range(count)]
    nics = [draw.randrange(count) for _ in range(count)]
    texts = [own(nic) if kind == "exclusive" else f"nic{nic}" for kind, nic in zip(kinds, nics)]
    configure(conf_dir, *texts)
    exclusive = kinds.count("exclusive")
    ranks = draw.randrange(1, (count if exclusive == count else 10) + 1)
    claimed = all_ranks(machine, ranks, draw.sample(range(ranks), ranks))
    taken: list[str] = []
    told = _tables.devices(conf_dir, machine.root)
    for number, files in claimed.items():
        assert files, number
        owned = [path for path, _ in files]
        serves = [device for _, device in files]
        assert len(set(serves)) == len(serves)
        assert all(path in told[device]["files"] for path, device in files)
        alone = [path for path in owned if kinds[int(Path(path).stem[4:])] == "exclusive"]
        quota = exclusive // ranks + (number < exclusive % ranks)
        assert len(alone) <= max(quota, 1)
        taken += alone
        shareable = {
            device
            for device, one in enumerate(told)
            if any(kinds[int(Path(path).stem[4:])] == "shared" for path in one["files"])
        }
        assert shareable <= set(serves)
    assert len(set(taken)) == len(taken)


# -- one device


@pytest.mark.parametrize("text", ["nic{0}", "nic{0} address = 10.0.{0}.1/24"])
def test_one_device_claims_home_only(
    text: str, machine: Machine, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(conf_dir, *(text.format(number) for number in range(4)))
    monkeypatch.setenv("HARP_DEVICES", "1")
    claimed = all_ranks(machine, 2)
    assert claimed == {number: [(f"{conf_dir}/ztcp{number}.conf", 0)] for number in range(2)}


# -- processes


def told(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout
    return json.loads(process.stdout.readline())


@pytest.mark.parametrize("files, ranks", [(8, 8), (8, 3)])
def test_processes_that_start_together_divide_the_nics(
    files: int, ranks: int, machine: Machine, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(conf_dir, *map(own, range(files)), "shared")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    processes = []
    try:
        for number in range(ranks):
            monkeypatch.setenv("LOCAL_RANK", str(number))
            command = [sys.executable, "-c", RANK, str(machine.root)]
            pipe = subprocess.PIPE
            processes.append(subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe))
        for process in processes:
            assert process.stdout and process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()
        claimed = [names(told(process)) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=20)
    shared = f"ztcp{files}"
    assert all(shared in one for one in claimed), claimed
    everything = [name for one in claimed for name in one if name != shared]
    assert sorted(everything) == sorted(f"ztcp{number}" for number in range(files))
    assert max(map(len, claimed)) - min(map(len, claimed)) <= 1
