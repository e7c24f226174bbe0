# SPDX-License-Identifier: Apache-2.0
"""Every rank of a host reports the same device properties to NCCL, although each has another NIC.
Different properties make NCCL up to 2.21 fail or hang at init."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plugin_peer import Peer, PeerFailure, end_all

from harp import paths

APIS = (4, 5, 6, 7, 8, 9, 10, 11, 12)
RANKS = 8
# The NICs' speeds in the files (0: none) and in sysfs, Mbit/s.
SAID = (0, 0, 50_000, 0, 0, 200_000, 0, 0)
SHOWN = (100_000, 100_000, 25_000, 100_000, 40_000, 100_000, 100_000, 100_000)
LEAST = 40_000


class Host:
    """A host with two sockets and four PCI bridges per socket, a GPU and a NIC below each bridge,
    and a configuration file for each NIC."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "config"
        self.run = root / "run"
        for folder in (self.config, self.run, root / "sys/bus/pci/devices", root / "proc/nvidia"):
            folder.mkdir(parents=True)
        for number in range(RANKS):
            self._switch(number)

    def _function(self, place: str, node: int) -> Path:
        folder = self.root / "sys/devices" / place
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
        link = self.root / "sys/bus/pci/devices" / folder.name
        link.symlink_to(Path("/sys/devices") / place)
        return folder

    def _switch(self, number: int) -> None:
        node = number // 4
        bridge = f"pci0000:{node}{number % 4}"
        self._function(f"{bridge}/000{number}:01:00.0", node)
        gpu = self.root / f"proc/nvidia/gpus/000{number}:01:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text("Model: H100\n")
        nic = f"{bridge}/000{number}:02:00.0"
        interface = self._function(nic, node) / f"net/nic{number}"
        interface.mkdir(parents=True)
        (interface / "speed").write_text(f"{SHOWN[number]}\n")
        said = f"speed_mbps = {SAID[number]}\n" if SAID[number] else ""
        (self.config / f"ztcp{number}.conf").write_text(
            f"device = wire:/dev/shm/{self.name}-{number}\naddress = 10.9.{number}.1/24\n"
            f"pci_path = /sys/devices/{nic}\n{said}"
        )

    @property
    def name(self) -> str:
        return f"harp-test-{self.root.name}"

    def rank(self, number: int, **environment: str) -> Peer:
        mounts = f"mount --bind {self.root}/sys /sys && mount --bind {self.root}/proc /proc/driver"
        inside = ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh"]
        site = {"HARP_CONF_DIR": str(self.config), "HARP_RUN_DIR": str(self.run)}
        place = {"LOCAL_RANK": str(number), "LOCAL_WORLD_SIZE": str(RANKS)}
        return Peer(inside, {**site, **place, **environment})


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    if os.geteuid() != 0:
        pytest.skip("a made-up /sys needs root")
    made = Host(tmp_path / uuid.uuid4().hex[:12])
    yield made
    for left in Path("/dev/shm").glob(f"{made.name}*"):
        left.unlink()


def claimed(rank: Peer) -> list[str]:
    """The ztcp*.conf files that a rank has open."""
    open_files = [os.readlink(one) for one in Path(f"/proc/{rank.process.pid}/fd").iterdir()]
    return [name for name in open_files if name.endswith(".conf")]


def told(rank: Peer) -> dict[int, dict[str, Any]]:
    """The properties by version of the interface; init is called for each version."""
    found = {}
    for api in APIS:
        rank.open(path=str(paths.nccl_plugin_path()), api=api)
        assert rank.init() == 1
        found[api] = rank.properties()
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_properties_are_equal_on_every_rank(host: Host, seed: int) -> None:
    """The ranks may start in any order."""
    order = random.Random(seed).sample(range(RANKS), RANKS)
    ranks = [host.rank(number) for number in order]
    try:
        first, *others = [told(rank) for rank in ranks]
        files = [claimed(rank) for rank in ranks]
    finally:
        end_all(ranks)
    nearest = [[f"{host.config}/ztcp{number}.conf"] for number in order]
    assert files == nearest, "each was to have its own NIC"
    for other in others:
        assert other == first
    for found in first.values():
        assert (found["name"], found["pciPath"], found["port"]) == ("HARP", None, 1)
        assert found["speed"] == LEAST


def test_environment_overrides_speed(host: Host) -> None:
    rank = host.rank(0, HARP_SPEED_MBPS="400000")
    try:
        assert {found["speed"] for found in told(rank).values()} == {400_000}
    finally:
        rank.end()


def test_unreadable_file_makes_every_rank_decline(host: Host) -> None:
    """All ranks but one could run without the file, but their properties would differ."""
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
