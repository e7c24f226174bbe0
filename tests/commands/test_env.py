# SPDX-License-Identifier: Apache-2.0
"""harp env: the table of keys, and the values in force with their sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harp import _tables

# The names that users rely on.
KEYS = {
    "device": "required",
    "address": "kernel for packet and xdp, else required",
    "gateway": "the kernel's route for packet and xdp, else none",
    "mtu": "the device's",
    "mac": "the device's",
    "gpu": "any",
    "pci_path": "none",
    "speed_mbps": "the device's, else 25000",
    "instances": "1, or up to 4 for packet on a host with free CPUs",
    "cores": "none: workers are not pinned",
    "flows": "one for each instance",
    "stripe": "none",
    "threads": "auto",
    "tcp_ports": "49152-65535; for address = kernel, ports that the kernel assigns",
    "peers": "any",
    "cc": "cubic",
    "rto_min_us": "5000",
    "timeout_ms": "60000",
    "hugepages": "the free ones, or none",
}


def test_defaults_list_every_key(harp: Any) -> None:
    table = json.loads(harp("env", "--defaults", "--json").stdout)["keys"]
    assert {key["name"]: key["default"] for key in table} == KEYS
    text = harp("env", "--defaults").stdout
    for key in _tables.keys():
        assert f"{key['name']}  [{key['default']}]\n    {key['doc']}\n" in text
    assert "HARP_MTU in the environment" in text
    assert "HARP_DEVICE in the environment" not in text


def test_values_are_shown_with_sources(
    harp: Any, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folders / "config" / "ztcp0.conf").write_text("device = packet:eth0\nflows = 2\n")
    monkeypatch.setenv("HARP_MTU", "1400")
    monkeypatch.setenv("HARP_GPU", "0000:01:00.0")
    report = json.loads(harp("env", "--json").stdout)
    values = report["files"][0]["values"]
    assert values["flows"] == {"value": "2", "source": "file"}
    assert values["mtu"] == {"value": "1400", "source": "environment"}
    assert values["gpu"] == {"value": "any", "source": "default"}
    assert values["cc"] == {"value": "cubic", "source": "default"}
    assert values["instances"] == {"value": None, "source": "default"}
    assert values["gateway"] == {"value": None, "source": "default"}
    assert report["ignored"] == ["HARP_GPU"]
    text = harp("env").stdout
    assert "HARP_GPU = 0000:01:00.0    ignored" in text
    assert f"HARP_CONF_DIR = {folders}/config" in text


def test_unknown_variable_is_named_with_suggestion(
    harp: Any, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folders / "config" / "ztcp0.conf").write_text("device = packet:eth0\n")
    monkeypatch.setenv("HARP_FLOW", "4")
    monkeypatch.setenv("HARP_ELEPHANT", "1")
    assert json.loads(harp("env", "--json").stdout)["unknown"] == {
        "HARP_ELEPHANT": None,
        "HARP_FLOW": "HARP_FLOWS",
    }
    text = harp("env").stdout
    assert "HARP_FLOW = 4    HARP does not read it; do you mean HARP_FLOWS?\n" in text
    assert "HARP_ELEPHANT = 1    HARP does not read it\n" in text


def test_invalid_file_exits_1(harp: Any, folders: Path) -> None:
    path = folders / "config" / "ztcp0.conf"
    assert "no ztcp*.conf" in harp("env", code=1).stdout
    path.write_text("device = eth0\n")
    assert "error: " in harp("env", code=1).stdout
    assert (
        "ztcp0.conf:1: device = 'eth0'"
        in json.loads(harp("env", "--json", str(path), code=1).stdout)["files"][0]["error"]
    )


# -- harp env --devices


def devices_of(harp: Any, code: int = 0) -> dict[str, Any]:
    return json.loads(harp("env", "--devices", "--json", code=code).stdout)


def test_devices_are_those_of_the_plugin(harp: Any, folders: Path) -> None:
    """One for each NIC, in the order of the files' versions."""
    config = folders / "config"
    for number, name in ((2, "veth0"), (10, "veth1"), (9, "veth0")):
        (config / f"ztcp{number}.conf").write_text(f"device = packet:{name}\nspeed_mbps = 40000\n")
    report = devices_of(harp)
    assert (report["schema"], report["folder"]) == ("harp.devices/1", str(config))
    assert report["error"] is None
    guids = [one.pop("guid") for one in report["devices"]]
    assert [int(guid, 16) for guid in guids] == [one["guid"] for one in _tables.devices(config)]
    assert report["devices"] == [
        {
            "index": index,
            "name": f"HARP{index}",
            "identity": f"veth{index}",
            "pci_path": None,
            "speed_mbps": 40_000,
            "speed_known": True,
            "files": [f"{config}/ztcp{number}.conf" for number in numbers],
        }
        for index, numbers in enumerate(((2, 9), (10,)))
    ]
    head, first, second = harp("env", "--devices").stdout.splitlines()
    assert head.split() == "device name NIC Mbit/s guid PCI path files".split()
    assert first.split() == ["0", "HARP0", "veth0", "40000", guids[0], "none",
                             "ztcp2.conf,", "ztcp9.conf"]  # fmt: skip
    assert second.split() == ["1", "HARP1", "veth1", "40000", guids[1], "none", "ztcp10.conf"]


def test_one_device_is_shown_for_all_nics(
    harp: Any, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        path = folders / "config" / f"ztcp{number}.conf"
        path.write_text(f"device = packet:veth{number}\npci_path = /sys/devices/pci0000:00\n")
    monkeypatch.setenv("HARP_DEVICES", "1")
    (one,) = devices_of(harp)["devices"]
    assert (one["name"], one["pci_path"], len(one["files"])) == ("HARP", None, 2)
    _, row = harp("env", "--devices").stdout.splitlines()
    assert row.split()[:3] == ["0", "HARP", "all"]


def test_devices_of_wrong_configuration_exit_1(
    harp: Any, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "holds no ztcp*.conf" in harp("env", "--devices", code=1).stdout
    path = folders / "config" / "ztcp0.conf"
    path.write_text("device = packet:veth0\nflows = 0\n")
    report = devices_of(harp, code=1)
    assert "ztcp0.conf:2: flows" in report["error"] and report["devices"] == []
    path.write_text("device = packet:veth0\n")
    monkeypatch.setenv("HARP_DEVICES", "2")
    assert "error: HARP_DEVICES=2: the only value is 1" in harp("env", "--devices", code=1).stdout


@pytest.mark.parametrize("more", ["--defaults", "ztcp0.conf"])
def test_devices_are_of_the_whole_folder(harp: Any, more: str) -> None:
    assert "it reads the folder" in harp("env", "--devices", more, code=2).stderr
