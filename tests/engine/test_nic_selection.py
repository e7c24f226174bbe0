# SPDX-License-Identifier: Apache-2.0
"""Which NIC a process takes by the buses between it and the process's GPU, on made-up hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines import Machine, configure

from harp.testing import _engine

# Host bridges, and the NUMA nodes that they belong to.
BRIDGES = {"pci0000:10": 0, "pci0001:20": 0, "pci0002:80": 1, "pci0003:90": 1}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "root")


@pytest.fixture
def big(machine: Machine) -> Machine:
    """Two sockets, two switches each; two GPUs and a NIC below each switch."""
    for number, (bridge, node) in enumerate(BRIDGES.items()):
        bus = f"{number:04}:{bridge[-2]}"
        switch = f"{bridge}/{bus}0:01.0/{bus}1:00.0"
        machine.gpu(f"{switch}/{bus}2:00.0/{bus}3:00.0", node)
        machine.gpu(f"{switch}/{bus}2:01.0/{bus}4:00.0", node)
        machine.nic(f"nic{number}", f"{switch}/{bus}2:02.0/{bus}5:00.0", node)
    return machine


def taken(machine: Machine, monkeypatch: pytest.MonkeyPatch, rank: int, **extra: str) -> str:
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    for name, value in extra.items():
        monkeypatch.setenv(name, value)
    path = _engine.claim_below(str(machine.root).encode())
    return Path(path).read_text().splitlines()[0].split(":", 1)[1]


def test_rank_takes_nic_on_its_pci_switch(
    big: Machine, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the files' order."""
    configure(conf_dir, "nic2", "nic0", "nic3", "nic1")
    for rank in range(8):
        assert taken(big, monkeypatch, rank) == f"nic{rank // 2}"


def test_visible_gpu_decides_instead_of_rank(
    big: Machine, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(conf_dir, "nic0", "nic1", "nic2", "nic3")
    assert taken(big, monkeypatch, 0, CUDA_VISIBLE_DEVICES="5") == "nic2"
    assert taken(big, monkeypatch, 1, CUDA_VISIBLE_DEVICES="7,6") == "nic3"


def test_same_socket_is_preferred(
    big: Machine, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPU 5 and nic2 share a switch; nic3 is on their socket, the others are not."""
    configure(conf_dir, "nic3", "nic0", "nic1")
    assert taken(big, monkeypatch, 5) == "nic3"


def test_ranks_divide_equally_near_nics(
    machine: Machine, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two GPUs are near the last two NICs, and the other way round."""
    for number, bridge in enumerate(("80", "80", "10", "10")):
        machine.gpu(f"pci0000:{bridge}/0000:{bridge}:01.0/000{number}:11:00.0")
        machine.nic(f"nic{number}", f"pci0000:{bridge}/0000:{bridge}:01.0/000{number}:22:00.0")
    configure(conf_dir, "nic2", "nic3", "nic0", "nic1")
    assert [taken(machine, monkeypatch, rank) for rank in range(4)] == [
        "nic0",
        "nic1",
        "nic2",
        "nic3",
    ]


def test_gpu_key_overrides_distance(
    big: Machine, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NIC that is said to serve a GPU is that one's, and the last choice of the others."""
    configure(conf_dir, "nic0", "nic3 gpu = 0000:13:00.0", "nic1")
    assert taken(big, monkeypatch, 0) == "nic3"
    assert taken(big, monkeypatch, 1) == "nic0"
    assert taken(big, monkeypatch, 7) == "nic1", "nic3 is near, but another's"
    (conf_dir / "ztcp0.conf").unlink()
    (conf_dir / "ztcp2.conf").unlink()
    assert taken(big, monkeypatch, 7) == "nic3"


def test_nic_is_found_by_pci_id_fault_port_or_pci_path(
    big: Machine, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By PCI id, behind a fault port, or where pci_path says."""
    own = "address = 10.0.0.1/24"
    configure(conf_dir, f"dpdk:0000:15:00.0,queues=1 {own}", f"dpdk:0003:95:00.0 {own}")
    assert taken(big, monkeypatch, 7) == "0003:95:00.0"
    assert taken(big, monkeypatch, 0) == "0000:15:00.0,queues=1"
    configure(conf_dir, "fault:drop=0|packet:nic0", "fault:drop=0|packet:nic3")
    assert taken(big, monkeypatch, 7).endswith("nic3")
    place = "/sys/bus/pci/devices/0003:95:00.0"
    configure(conf_dir, "nic0", f"dummy7 pci_path = {place}")
    assert taken(big, monkeypatch, 7) == "dummy7"


def test_virtio_nic_is_found_by_its_parent_bus(
    machine: Machine, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.gpu("pci0000:10/0000:10:01.0/0000:11:00.0")
    machine.nic("nic0", "pci0000:80/0000:80:01.0", below="virtio0")
    machine.nic("nic1", "pci0000:10/0000:10:02.0", below="virtio1")
    configure(conf_dir, "nic0", "nic1")
    assert taken(machine, monkeypatch, 0) == "nic1"


def test_unknown_distance_falls_back_to_rank_order(
    machine: Machine, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Virtual NICs, or a sysfs that shows another host's; one whose place is known is nearer."""
    machine.gpu("pci0000:10/0000:10:01.0")
    machine.gpu("pci0000:10/0000:10:02.0")
    configure(conf_dir, "veth0", "veth1")
    assert [taken(machine, monkeypatch, rank) for rank in (0, 1)] == ["veth0", "veth1"]
    machine.nic("veth1", "pci0000:10/0000:10:03.0")
    assert [taken(machine, monkeypatch, rank) for rank in (0, 1)] == ["veth1", "veth1"]


def test_interface_of_other_network_namespace_is_ignored(
    machine: Machine, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lo` has another number in this /sys: what it says is about somebody else's."""
    machine.gpu("pci0000:10/0000:10:01.0")
    machine.nic("lo", "pci0000:10/0000:10:03.0", index=9)
    configure(conf_dir, "veth0", "lo")
    assert taken(machine, monkeypatch, 0) == "veth0"
    (machine.root / "sys/class/net/lo/ifindex").write_text("1\n")
    assert taken(machine, monkeypatch, 0) == "lo"
