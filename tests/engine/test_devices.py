# SPDX-License-Identifier: Apache-2.0
"""The devices that NCCL is told of: one for each NIC of the configuration folder, in an order that
every process of the host finds."""

from __future__ import annotations

import errno
import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from machines import Machine, configure

from harp import _tables
from harp.testing import _engine

OWN = "address = 10.0.0.1/24"
LIMIT = 128  # NCCL's


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A host with two NICs."""
    made = Machine(tmp_path / "root")
    made.nic("nic0", "pci0000:10/0000:10:01.0/0000:11:00.0")
    made.nic("nic1", "pci0000:80/0000:80:01.0/0000:81:00.0", node=1)
    return made


def devices(machine: Machine, folder: Path) -> list[dict[str, Any]]:
    return _tables.devices(folder, machine.root)


def identities(machine: Machine, folder: Path) -> list[str]:
    return [one["identity"] for one in devices(machine, folder)]


def refused(folder: Path, root: Path, code: int) -> str:
    """The one line that refuses the folder, by both functions that find devices."""
    with pytest.raises(_tables.ConfigError) as caught:
        _tables.devices(folder, root)
    assert caught.value.code == -code, str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(RuntimeError) as declined:
        _engine.Claims(str(root).encode())
    assert str(declined.value) == str(caught.value)
    return str(caught.value)


# -- order and identity


def test_devices_follow_file_versions(machine: Machine, conf_dir: Path) -> None:
    for number in (10, 9, 2):
        (conf_dir / f"ztcp{number}.conf").write_text(f"device = packet:veth{number}\n")
    found = devices(machine, conf_dir)
    assert [one["identity"] for one in found] == ["veth2", "veth9", "veth10"]
    assert [one["name"] for one in found] == ["HARP0", "HARP1", "HARP2"]
    assert [one["files"] for one in found] == [
        [f"{conf_dir}/ztcp{number}.conf"] for number in (2, 9, 10)
    ]


def test_files_of_one_nic_are_one_device(machine: Machine, conf_dir: Path) -> None:
    """A file may name a NIC by its interface, by its PCI id, or behind a fault port."""
    configure(
        conf_dir,
        "nic1",
        f"nic0 {OWN}",
        f"dpdk:0000:81:00.0 {OWN}",
        "fault:drop=0|packet:nic0",
        f"dpdk:81:00.0,queues=2 {OWN}",
    )
    found = devices(machine, conf_dir)
    assert [one["identity"] for one in found] == ["0000:81:00.0", "0000:11:00.0"]
    numbers = [[path[-6] for path in one["files"]] for one in found]
    assert numbers == [["0", "2", "4"], ["1", "3"]]


def test_first_file_of_a_nic_gives_speed_and_pci_path(machine: Machine, conf_dir: Path) -> None:
    configure(
        conf_dir,
        "nic0 speed_mbps = 40000\npci_path = /sys/devices/here",
        "nic0 speed_mbps = 80000\npci_path = /sys/devices/there",
    )
    (found,) = devices(machine, conf_dir)
    assert (found["speed_mbps"], found["pci_path"]) == (40_000, "/sys/devices/here")


def test_ports_of_one_function_are_several_devices(machine: Machine, conf_dir: Path) -> None:
    machine.port("nic0p1", beside="nic0", number=1)
    configure(conf_dir, "nic0p1", "nic0")
    found = devices(machine, conf_dir)
    assert [one["identity"] for one in found] == ["0000:11:00.0/1", "0000:11:00.0"]
    assert found[0]["pci_path"] == found[1]["pci_path"]
    assert found[0]["guid"] != found[1]["guid"]


@pytest.mark.parametrize(
    "device, identity",
    [
        ("dpdk:0000:11:00.0", "0000:11:00.0"),
        ("dpdk:0000:11:00.0,queues=2,rx_vec_en=1", "0000:11:00.0"),
        ("dpdk:11:00.0", "0000:11:00.0"),
        ("fault:drop=0|fault:delay_us=5|packet:nic0", "0000:11:00.0"),
        ("packet:nic0", "0000:11:00.0"),
        ("packet:veth7", "veth7"),
        ("fault:drop=0|packet:veth7", "veth7"),
        ("wire:/dev/shm/w", "wire:/dev/shm/w"),
        ("dpdk:virtio_user0,path=/run/vhost", "dpdk:virtio_user0,path=/run/vhost"),
        ("dpdk:0000:99:00.0,queues=2", "0000:99:00.0"),  # sysfs does not show it
    ],
)
def test_identity_is_function_else_interface_else_device(
    device: str, identity: str, machine: Machine, conf_dir: Path
) -> None:
    configure(conf_dir, f"{device} {OWN}")
    assert identities(machine, conf_dir) == [identity]


def test_interface_of_other_network_namespace_has_no_function(
    machine: Machine, conf_dir: Path
) -> None:
    """`lo` has another number in this sysfs, so sysfs describes another interface."""
    machine.nic("lo", "pci0000:10/0000:10:03.0", index=9)
    configure(conf_dir, "lo")
    (found,) = devices(machine, conf_dir)
    assert (found["identity"], found["pci_path"]) == ("lo", None)


# -- properties


def test_pci_path_is_the_resolved_function(machine: Machine, conf_dir: Path) -> None:
    """virtio has a bus of its own below the function, and NCCL needs the function."""
    machine.nic("virtual", "pci0000:10/0000:10:02.0", below="virtio0")
    configure(conf_dir, "nic0", f"dpdk:0000:81:00.0 {OWN}", "virtual", "veth7")
    below = machine.root / "sys/devices"
    assert [one["pci_path"] for one in devices(machine, conf_dir)] == [
        f"{below}/pci0000:10/0000:10:01.0/0000:11:00.0",
        f"{below}/pci0000:80/0000:80:01.0/0000:81:00.0",
        f"{below}/pci0000:10/0000:10:02.0",
        None,
    ]


def test_pci_path_key_comes_first_and_is_no_identity(machine: Machine, conf_dir: Path) -> None:
    configure(
        conf_dir,
        "nic0 pci_path = /sys/devices/pci0000:80/0000:80:01.0",
        "veth7 pci_path = /sys/devices/pci0000:80/0000:80:01.0",
    )
    found = devices(machine, conf_dir)
    assert [one["identity"] for one in found] == ["0000:11:00.0", "veth7"]
    assert {one["pci_path"] for one in found} == {"/sys/devices/pci0000:80/0000:80:01.0"}


def test_too_long_function_path_is_left_out(machine: Machine, conf_dir: Path) -> None:
    """Half a path would be the place of another device."""
    bridges = "/".join(f"0000:{number:02x}:00.0" for number in range(0x20, 0x50))
    machine.nic("deep", f"pci0000:20/{bridges}")
    configure(conf_dir, "deep")
    (found,) = devices(machine, conf_dir)
    assert (found["identity"], found["pci_path"]) == ("0000:4f:00.0", None)


def test_guids_differ_and_depend_on_the_nic_only(machine: Machine, conf_dir: Path) -> None:
    names = [f"veth{number}" for number in range(100)]
    configure(conf_dir, *names)
    before = {one["identity"]: one["guid"] for one in devices(machine, conf_dir)}
    assert len(set(before.values())) == len(names)
    random.Random(1).shuffle(names)
    configure(conf_dir, *(f"{name} flows = 2" for name in names))
    assert {one["identity"]: one["guid"] for one in devices(machine, conf_dir)} == before


# -- equal in every process


def test_devices_do_not_depend_on_claims(machine: Machine, conf_dir: Path) -> None:
    configure(conf_dir, "nic0", f"nic1 {OWN}", f"veth7 {OWN}", "veth8")
    found = devices(machine, conf_dir)
    claims = []
    for _ in range(2):
        claims.append(_engine.Claims(str(machine.root).encode()))
        assert devices(machine, conf_dir) == found
    indexes = {path: device for one in claims for path, device in one.files()}
    for index, one in enumerate(found):
        assert all(indexes.get(path, index) == index for path in one["files"])
    for one in claims:
        one.release()


def test_devices_do_not_depend_on_rank_or_gpu(
    machine: Machine, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.gpu("pci0000:10/0000:10:04.0")
    machine.gpu("pci0000:80/0000:80:04.0", node=1)
    configure(conf_dir, "nic0", "nic1 gpu = 0000:80:04.0", f"veth7 {OWN}")
    found = devices(machine, conf_dir)
    for rank, gpu in itertools.product(("0", "1"), ("0", "1")):
        monkeypatch.setenv("LOCAL_RANK", rank)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpu)
        assert devices(machine, conf_dir) == found


# -- HARP_DEVICES


def test_one_device_stands_for_all_nics(
    machine: Machine, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.speed("nic0", "100000")
    machine.speed("nic1", "40000")
    monkeypatch.setenv("HARP_DEVICES", "1")
    guids = set()
    for names in (("nic0", "nic1"), ("nic1", "nic0")):
        configure(conf_dir, *names)
        (found,) = devices(machine, conf_dir)
        assert (found["name"], found["pci_path"], found["speed_mbps"]) == ("HARP", None, 40_000)
        assert found["files"] == [f"{conf_dir}/ztcp{number}.conf" for number in (0, 1)]
        guids.add(found["guid"])
    assert guids == {0x50524148}


def test_empty_harp_devices_is_unset(
    machine: Machine, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(conf_dir, "nic0", "nic1")
    monkeypatch.setenv("HARP_DEVICES", "")
    assert len(devices(machine, conf_dir)) == 2


@pytest.mark.parametrize("value", ["0", "2", "all", " 1", "1 ", "x" * 300])
def test_wrong_harp_devices_is_refused(
    value: str, machine: Machine, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(conf_dir, "nic0")
    monkeypatch.setenv("HARP_DEVICES", value)
    line = refused(conf_dir, machine.root, errno.EINVAL)
    assert line == (
        f"HARP_DEVICES={value[:32]}: the only value is 1, one device for all NICs; unset it for a "
        "device for each NIC"
    )


# -- limits and errors


def test_more_nics_than_nccl_allows_are_refused(
    machine: Machine, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"veth{number}" for number in range(LIMIT)]
    configure(conf_dir, *names, *names)
    assert len(devices(machine, conf_dir)) == LIMIT
    configure(conf_dir, *names, *names[1:], f"veth{LIMIT}")
    line = refused(conf_dir, machine.root, errno.EINVAL)
    assert line == f"{conf_dir} has files for more than 128 NICs, NCCL's limit; remove some"


def test_unreadable_file_is_refused(machine: Machine, conf_dir: Path) -> None:
    configure(conf_dir, "nic0", "nic1")
    (conf_dir / "ztcp2.conf").symlink_to("nowhere")
    line = refused(conf_dir, machine.root, errno.ENOENT)
    assert line == (
        f"{conf_dir}/ztcp2.conf: cannot be opened: No such file or directory; make it readable for "
        "this user"
    )


def test_invalid_file_is_refused(machine: Machine, conf_dir: Path) -> None:
    configure(conf_dir, "nic0", "nic1 flows = 0")
    assert "ztcp1.conf:2: flows" in refused(conf_dir, machine.root, errno.EINVAL)


def test_missing_folder_is_refused(
    machine: Machine, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = conf_dir / "absent"
    monkeypatch.setenv("HARP_CONF_DIR", str(absent))
    assert "absent: No such file" in refused(absent, machine.root, errno.ENOENT)
