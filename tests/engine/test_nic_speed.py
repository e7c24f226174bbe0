# SPDX-License-Identifier: Apache-2.0
"""The speed of each device that NCCL is told of. It comes from the files and sysfs alone, so that
every process of a host tells the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines import Machine, configure

from harp import _tables

UNKNOWN = 25_000


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "root")


def nic(machine: Machine, number: int, speed: str) -> str:
    """An interface, and what sysfs says of its speed. Its PCI id."""
    name, pci = f"nic{number}", f"0000:1{number}:00.0"
    machine.nic(name, f"pci0000:10/{pci}")
    machine.speed(name, speed)
    return pci


def speeds(machine: Machine, conf_dir: Path) -> list[int]:
    return [one["speed_mbps"] for one in _tables.devices(conf_dir, machine.root)]


def known(machine: Machine, conf_dir: Path) -> list[bool]:
    return [one["speed_known"] for one in _tables.devices(conf_dir, machine.root)]


def test_each_device_has_the_speed_of_its_nic(machine: Machine, conf_dir: Path) -> None:
    for number, speed in enumerate(("100000", "40000", "200000")):
        nic(machine, number, speed)
    configure(conf_dir, "nic0", "nic1", "nic2")
    assert speeds(machine, conf_dir) == [100_000, 40_000, 200_000]


def test_one_device_has_the_slowest_speed(
    machine: Machine, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARP_DEVICES", "1")
    for number, speed in enumerate(("100000", "40000", "200000")):
        nic(machine, number, speed)
    configure(conf_dir, "nic0", "nic1", "nic2")
    assert speeds(machine, conf_dir) == [40_000]
    configure(conf_dir, "nic0", "nic1 speed_mbps = 80000", "nic2")
    assert speeds(machine, conf_dir) == [80_000] and known(machine, conf_dir) == [True]
    machine.speed("nic2", "-1")
    assert speeds(machine, conf_dir) == [UNKNOWN] and known(machine, conf_dir) == [False]


def test_speed_mbps_overrides_sysfs(
    machine: Machine, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nic(machine, 0, "100000")
    nic(machine, 1, "10000")
    configure(conf_dir, "nic0", "nic1 speed_mbps = 80000")
    assert speeds(machine, conf_dir) == [100_000, 80_000]
    monkeypatch.setenv("HARP_SPEED_MBPS", "60000")
    assert speeds(machine, conf_dir) == [60_000, 60_000]


@pytest.mark.parametrize("said", ["-1", "0", "65535", "4294967295", "fast", ""])
def test_unknown_sysfs_speed_gives_default(machine: Machine, conf_dir: Path, said: str) -> None:
    nic(machine, 0, "100000")
    nic(machine, 1, said)
    configure(conf_dir, "nic0", "nic1")
    assert speeds(machine, conf_dir) == [100_000, UNKNOWN]
    assert known(machine, conf_dir) == [True, False]


def test_speed_is_found_by_pci_id_fault_port_or_pci_path(machine: Machine, conf_dir: Path) -> None:
    """By PCI id, and its driver has left it its interface; behind a fault port; where pci_path
    says; and one that has none."""
    own = "address = 10.0.0.1/24"
    pci = nic(machine, 0, "100000")
    configure(conf_dir, f"dpdk:{pci} {own}")
    assert speeds(machine, conf_dir) == [100_000]
    configure(conf_dir, "fault:drop=0|packet:nic0")
    assert speeds(machine, conf_dir) == [100_000]
    configure(conf_dir, f"wire:/dev/shm/w pci_path = /sys/bus/pci/devices/{pci}\n{own}")
    assert speeds(machine, conf_dir) == [100_000]
    configure(conf_dir, f"wire:/dev/shm/w {own}")
    assert speeds(machine, conf_dir) == [UNKNOWN]


def test_interface_of_other_network_namespace_is_ignored(machine: Machine, conf_dir: Path) -> None:
    machine.nic("lo", "pci0000:10/0000:10:03.0", index=9)
    machine.speed("lo", "400000")
    configure(conf_dir, "lo")
    assert speeds(machine, conf_dir) == [UNKNOWN]
