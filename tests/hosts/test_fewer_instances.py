# SPDX-License-Identifier: Apache-2.0
"""A rank whose host refuses several instances goes on with one, unless its file asks for more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ranks import Failed, Rank, Site, connect, packet_site

from harp import paths
from tools.hosts.lab import Lab

pytestmark = pytest.mark.skipif(
    "SANITIZER_RUNTIME" in os.environ, reason="a sanitizer replaces the preloaded functions"
)

FANOUT = "cannot steer frames to 4 instances: Protocol not available; set instances = 1"


def site_without_fanout(folder: Path, lab: Lab, keys: str) -> Site:
    site = packet_site(folder, lab.hosts[0]).configure(
        f"device = packet:{lab.hosts[0].interface}\naddress = kernel\n{keys}"
    )
    library = paths.build_dir() / "tests/hosts/libno_fanout.so"
    site.environment.update({"LD_PRELOAD": str(library), "HARP_AGENT": ""})
    return site


def test_several_instances_by_default_become_one(lab: Lab, tmp_path: Path) -> None:
    sites = [
        site_without_fanout(tmp_path / "0", lab, ""),
        packet_site(tmp_path / "1", lab.hosts[1], instances=2),
    ]
    with Rank(sites[0]) as one, Rank(sites[1]) as other:
        one.init()
        other.init()
        (warning,) = one.warnings
        assert "has one instance instead of 4: packet:eth0: " + FANOUT in warning
        (process,) = sites[0].published()
        assert len(process.instances) == 1
        for ends in ((one, other), (other, one)):
            connect(*ends).move()


def test_explicit_number_of_instances_is_refused(lab: Lab, tmp_path: Path) -> None:
    with Rank(site_without_fanout(tmp_path, lab, "instances = 4\n")) as rank:
        with pytest.raises(Failed):
            rank.init()
        (warning,) = rank.warnings
        assert FANOUT in warning
