# SPDX-License-Identifier: Apache-2.0
"""Two hosts behind a switch, whose ports go down."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tools.hosts.lab import Host, Lab


@pytest.fixture
def switched() -> Iterator[Lab]:
    with Lab(hosts=2, wire="veth-1500-bridge") as made:
        yield made


@contextmanager
def without_carrier(lab: Lab, host: Host) -> Iterator[None]:
    """Sets the switch's port of a host down: its interface stays up, without a carrier."""
    args = ["ip", "-n", lab.middlebox, "link", "set", f"port{host.index}"]
    subprocess.run([*args, "down"], check=True, timeout=5)
    try:
        yield
    finally:
        subprocess.run([*args, "up"], check=True, timeout=5)
