# SPDX-License-Identifier: Apache-2.0
"""Every rank of a host tells NCCL the same devices, whichever NICs it drives. Different devices
make NCCL up to 2.21 fail or hang at init."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Optional

import pytest
from plugin_peer import Peer, PeerFailure, end_all

from harp import paths
from harp.api_versions import APIS
from tools.hosts.lab import Host as LabHost
from tools.hosts.lab import Lab
from tools.hosts.lab_fixtures import lab
from tools.hosts.ranks import open_files, remove_wire

__all__ = ["lab"]

RANKS = 8
REPEATS = (pytest.mark.slow, pytest.mark.sanitized)  # left out by tools/test --fast
# The NICs' speeds in the files (0: none) and in sysfs, Mbit/s.
SAID = (0, 0, 50_000, 0, 0, 200_000, 0, 0)
SHOWN = (100_000, 100_000, 25_000, 100_000, 40_000, 100_000, 100_000, 100_000)
LEAST = 40_000

Told = dict[int, list[dict[str, Any]]]  # properties of each device, by version of the interface


class Host:
    """A host with two sockets and four PCI bridges per socket. There is a GPU below each bridge, a
    NIC below the first ones, and a configuration file for each NIC. Ranks share the NICs of a
    namespace; a NIC serves one rank without it."""

    def __init__(self, root: Path, nics: int = RANKS, namespace: Optional[LabHost] = None) -> None:
        self.root = root
        self.nics = nics
        self.namespace = namespace
        self.config = root / "config"
        self.run = root / "run"
        for folder in ("config", "run", "sys/bus/pci/devices", "sys/class/net", "proc/nvidia"):
            (root / folder).mkdir(parents=True)
        for number in range(RANKS):
            self._gpu(number)
        for number in range(nics):
            self._nic(number)

    def _function(self, place: str, number: int) -> Path:
        folder = self.root / "sys/devices" / place
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{number // 4}\n")
        link = self.root / "sys/bus/pci/devices" / folder.name
        link.symlink_to(Path("/sys/devices") / place)
        return folder

    def _gpu(self, number: int) -> None:
        name = f"000{number}:01:00.0"
        self._function(f"{bridge(number)}/{name}", number)
        gpu = self.root / "proc/nvidia/gpus" / name
        gpu.mkdir(parents=True)
        (gpu / "information").write_text("Model: H100\n")

    def _nic(self, number: int) -> None:
        place = nic_place(number)
        interface = self._function(place, number) / f"net/nic{number}"
        interface.mkdir(parents=True)
        (interface / "speed").write_text(f"{SHOWN[number]}\n")
        (interface / "device").symlink_to(Path("/sys/devices") / place)
        shown = self.root / f"sys/class/net/nic{number}"
        shown.symlink_to(f"/sys/devices/{place}/net/nic{number}")
        text = f"speed_mbps = {SAID[number]}\n" if SAID[number] else ""
        if self.namespace:
            index = self.namespace.read(f"/sys/class/net/nic{number}/ifindex")
            (interface / "ifindex").write_text(index)
            text += f"device = packet:nic{number}\n"
        else:
            text += f"device = wire:/dev/shm/{self.name}-{number}\naddress = 10.9.{number}.1/24\n"
            text += f"pci_path = /sys/devices/{place}\n"
        (self.config / f"ztcp{number}.conf").write_text(text)

    @property
    def name(self) -> str:
        return f"harp-test-{self.root.name}"

    def rank(self, number: int, **environment: str) -> Peer:
        mounts = f"mount --bind {self.root}/sys /sys && mount --bind {self.root}/proc /proc/driver"
        inside = ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh"]
        if self.namespace:
            inside = self.namespace.command(inside)
        site = {"HARP_CONF_DIR": str(self.config), "HARP_RUN_DIR": str(self.run)}
        place = {"LOCAL_RANK": str(number), "LOCAL_WORLD_SIZE": str(RANKS)}
        return Peer(inside, {**site, **place, **environment})


def bridge(number: int) -> str:
    return f"pci0000:{number // 4}{number % 4}"


def nic_place(number: int) -> str:
    """The path of a NIC's function below /sys/devices."""
    return f"{bridge(number)}/000{number}:02:00.0"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("a made-up /sys needs root")
    return tmp_path / uuid.uuid4().hex[:12]


@pytest.fixture
def host(root: Path) -> Iterator[Host]:
    """A NIC for each rank."""
    made = Host(root)
    yield made
    remove_wire(Path("/dev/shm", made.name))


@pytest.fixture
def sharing(lab: Lab, root: Path) -> Iterator[Callable[[int], Host]]:
    """Makes a host whose ranks share that many NICs."""
    namespace = lab.hosts[0]
    with ExitStack() as stack:

        def make(nics: int) -> Host:
            for number in range(nics):
                name = f"nic{number}"
                namespace.run(["ip", "link", "add", name, "type", "veth", "peer", f"end{number}"])
                stack.callback(namespace.run, ["ip", "link", "del", name])
                namespace.run(["ip", "addr", "add", f"10.9.{number}.1/24", "dev", name])
                for end in (name, f"end{number}"):
                    namespace.run(["ip", "link", "set", end, "up"])
            return Host(root, nics, namespace)

        yield make


def claimed(rank: Peer) -> list[str]:
    """The names of the ztcp*.conf files that a rank has open."""
    names = open_files(rank.process.pid)
    return sorted(Path(name).name for name in names if name.endswith(".conf"))


def told(rank: Peer, devices: int) -> Told:
    """What a rank tells; init is called for each version."""
    found = {}
    for api in APIS:
        rank.open(path=str(paths.nccl_plugin_path()), api=api)
        assert rank.init() == devices
        found[api] = [rank.properties(device=device) for device in range(devices)]
    return found


def check(found: Told, devices: int) -> None:
    """Each device is a NIC of the host, at its real place."""
    for api, properties in found.items():
        assert [one["name"] for one in properties] == [f"HARP{i}" for i in range(devices)]
        places = [f"/sys/devices/{nic_place(number)}" for number in range(devices)]
        assert [one["pciPath"] for one in properties] == places
        speeds = [said or shown for said, shown in zip(SAID, SHOWN)][:devices]
        assert [one["speed"] for one in properties] == speeds
        assert {one["port"] for one in properties} == {1}
        assert len({one["guid"] for one in properties}) == devices
        if api >= 9:
            assert [one["vProps"] for one in properties] == [[i] for i in range(devices)]
    guids = {tuple(one["guid"] for one in properties) for properties in found.values()}
    assert len(guids) == 1, "the same in all versions"


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=REPEATS)])
def test_properties_are_equal_if_each_rank_has_a_nic(host: Host, seed: int) -> None:
    """The ranks may start in any order."""
    order = random.Random(seed).sample(range(RANKS), RANKS)
    ranks = [host.rank(number) for number in order]
    try:
        first, *others = [told(rank, RANKS) for rank in ranks]
        files = [claimed(rank) for rank in ranks]
    finally:
        end_all(ranks)
    assert files == [[f"ztcp{number}.conf"] for number in order], "each was to have its own NIC"
    check(first, RANKS)
    assert all(other == first for other in others)


@pytest.mark.parametrize("nics", [pytest.param(1, marks=REPEATS), 2, 8])
def test_properties_are_equal_if_ranks_share_nics(
    sharing: Callable[[int], Host], nics: int
) -> None:
    """The last rank starts after the others have opened and used their NICs."""
    host = sharing(nics)
    *order, late = random.Random(nics).sample(range(RANKS), RANKS)
    ranks = [host.rank(number) for number in order]
    try:
        first, *others = [told(rank, nics) for rank in ranks]
        for rank in ranks[:2]:
            for device in range(nics):
                rank.listen(device=device)
        ranks.append(host.rank(late))
        others.append(told(ranks[-1], nics))
        files = [claimed(rank) for rank in ranks]
        again = [rank.properties(device=device) for rank in ranks for device in range(nics)]
    finally:
        end_all(ranks)
    assert files == [[f"ztcp{number}.conf" for number in range(nics)]] * RANKS
    check(first, nics)
    assert all(other == first for other in others)
    assert again == first[APIS[-1]] * RANKS, "properties have changed"


def test_one_device_is_equal_on_every_rank(host: Host) -> None:
    """Every version of NCCL works with HARP_DEVICES=1, with one NIC for each rank."""
    order = random.Random(3).sample(range(RANKS), RANKS)
    ranks = [host.rank(number, HARP_DEVICES="1") for number in order]
    try:
        first, *others = [told(rank, 1) for rank in ranks]
        files = [claimed(rank) for rank in ranks]
    finally:
        end_all(ranks)
    assert files == [[f"ztcp{number}.conf"] for number in order], "each was to have its own NIC"
    assert all(other == first for other in others)
    for (found,) in first.values():
        assert (found["name"], found["pciPath"], found["port"]) == ("HARP", None, 1)
        assert (found["speed"], found["guid"]) == (LEAST, 0x50524148)


def test_environment_overrides_speed(host: Host) -> None:
    rank = host.rank(0, HARP_SPEED_MBPS="400000")
    try:
        found = [one["speed"] for properties in told(rank, RANKS).values() for one in properties]
    finally:
        rank.end()
    assert set(found) == {400_000}


def test_unreadable_file_makes_every_rank_decline(host: Host) -> None:
    """All ranks but one could run without the file, but their devices would differ."""
    (host.config / "ztcp6.conf").unlink()
    (host.config / "ztcp6.conf").symlink_to("nowhere")
    ranks = [host.rank(number) for number in (0, 6)]
    try:
        for rank in ranks:
            rank.open(path=str(paths.nccl_plugin_path()), api=12)
            with pytest.raises(PeerFailure):
                rank.init()
    finally:
        end_all(ranks)
