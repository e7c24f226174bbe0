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
    "address": "kernel for packet, else required",
    "gateway": "the kernel's route for packet, else none",
    "mtu": "the device's",
    "mac": "the device's",
    "gpu": "any",
    "pci_path": "none",
    "speed_mbps": "the device's, else 25000",
    "instances": "1",
    "cores": "none: workers are not pinned",
    "flows": "1",
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
    assert values["instances"] == {"value": "1", "source": "default"}
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
