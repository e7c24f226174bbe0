# SPDX-License-Identifier: Apache-2.0
"""The hosts of the documents: those of the recipes, with more NICs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster import Cluster, new_cluster

from tools.hosts.lab import Lab, _ip
from tools.hosts.lab_fixtures import lab

__all__ = ["lab"]

NICS = 4


@pytest.fixture(scope="module")
def lab_with_nics(lab: Lab) -> Lab:
    """The lab, with eth1 to eth4 on both hosts, each in a subnet of its own."""
    first, second = lab.hosts
    for nic in range(1, NICS + 1):
        name = f"eth{nic}"
        _ip("link", "add", name, "netns", first.namespace, "type", "veth", "peer", "name", name,
            "netns", second.namespace)  # fmt: skip
        for host in lab.hosts:
            address = f"10.0.{nic + 2}.{host.index + 1}/24"
            _ip("-n", host.namespace, "address", "add", address, "dev", name)
            _ip("-n", host.namespace, "link", "set", name, "up")
    return lab


@pytest.fixture
def cluster(lab_with_nics: Lab) -> Iterator[Cluster]:
    with new_cluster(lab_with_nics) as made:
        yield made
