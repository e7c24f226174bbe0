# SPDX-License-Identifier: Apache-2.0
"""Variables that begin with HARP_: those that nothing reads are named, with what may be meant."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from harp import _tables

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the caller's is there."""
    for name in list(os.environ):
        if name.startswith("HARP_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    "name, meant",
    [
        ("HARP_FLOW", "HARP_FLOWS"),
        ("HARP_flows", "HARP_FLOWS"),
        ("HARP_CHECKSUMS", "HARP_CHECKSUM"),
        ("HARP_KEYFILE", "HARP_KEY_FILE"),
        ("HARP_TIMEOUT", "HARP_TIMEOUT_MS"),
        ("HARP_DISABLED", "HARP_DISABLE"),
        ("HARP_CONFDIR", "HARP_CONF_DIR"),
        ("HARP_RTO_MIN", "HARP_RTO_MIN_US"),
        # Like a key that belongs to the file alone, or like nothing at all: no advice.
        ("HARP_GATEWAYS", ""),
        ("HARP_", ""),
        ("HARP_SOMETHING_ELSE", ""),
    ],
)
def test_misspelt_variable_is_named_with_suggestion(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "4")
    assert _tables.unknown_variables() == [(name, meant)]


def test_known_variables_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [f"HARP_{key['name'].upper()}" for key in _tables.keys()]
    known += [variable["name"] for variable in _tables.variables()]
    for name in (*known, "HARP_BUILD_DIR", "HARP_TEST_SEED", "HARPER", "MY_HARP_FLOW"):
        monkeypatch.setenv(name, "x")
    assert _tables.unknown_variables() == []


def test_every_variable_read_in_sources_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    read = re.compile(r'(?:getenv\(|environ(?:\.get\(|\[))"(HARP_\w+)"')
    found = set()
    for folder in ("harp", "plugin", "dpdk_glue"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".c", ".py", ".pyx"):
                found |= set(read.findall(path.read_text()))
    assert {"HARP_CONF_DIR", "HARP_KEY_FILE", "HARP_KERNEL_CC"} <= found
    for name in found:
        monkeypatch.setenv(name, "x")
    assert _tables.unknown_variables() == []


def test_control_characters_in_variable_names_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARP_\x1b[2J\n" + "x" * 100, "1")
    ((name, meant),) = _tables.unknown_variables()
    assert name.startswith("HARP_?[2J?x") and len(name) == 63 and meant == ""
