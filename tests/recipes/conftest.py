# SPDX-License-Identifier: Apache-2.0
"""The hosts of the recipes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster import Cluster, new_cluster

from tools.hosts.lab import Lab
from tools.hosts.lab_fixtures import lab

__all__ = ["lab"]


@pytest.fixture
def cluster(lab: Lab) -> Iterator[Cluster]:
    with new_cluster(lab) as made:
        yield made
