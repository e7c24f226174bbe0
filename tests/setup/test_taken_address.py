# SPDX-License-Identifier: Apache-2.0
"""harp setup does not give HARP an address that another host has (RFC 5227)."""

from __future__ import annotations

from typing import Any

import pytest

from harp.testing.lab import Lab

OWN = "10.77.0.102"
ARGUMENTS = ("--device", "packet:eth0", "--address", f"{OWN}/24")


@pytest.fixture
def taken(lab: Lab) -> Any:
    """The other host's kernel has the address."""
    lab.hosts[0].run(["ip", "addr", "add", f"{OWN}/24", "dev", "eth0"])
    yield
    lab.hosts[0].run(["ip", "addr", "del", f"{OWN}/24", "dev", "eth0"])


@pytest.mark.parametrize("words", [("plan",), ("apply",), ("--yes",)])
def test_an_address_that_another_host_has(
    words: tuple[str, ...], taken: None, lab: Lab, host: Any
) -> None:
    before = host.state()
    error = host.harp("setup", *words, *ARGUMENTS, code=1).stderr
    assert f"another host has {OWN} already: {lab.hosts[0].mac} answers ARP for it" in error
    assert "choose an address that no host has" in error
    assert host.state() == before


def test_an_address_that_comes_to_be_taken(lab: Lab, host: Any) -> None:
    """What is set up already is asked for again; undo asks nobody."""
    host.harp("setup", "apply", *ARGUMENTS)
    lab.hosts[0].run(["ip", "addr", "add", f"{OWN}/24", "dev", "eth0"])
    try:
        assert f"another host has {OWN}" in host.harp("setup", "--yes", code=1).stderr
        host.harp("setup", "undo")
    finally:
        lab.hosts[0].run(["ip", "addr", "del", f"{OWN}/24", "dev", "eth0"])
