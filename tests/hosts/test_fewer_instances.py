# SPDX-License-Identifier: Apache-2.0
"""A rank whose host refuses several instances goes on with one, unless its file asks for more.
The log names the limit that several reach."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from ranks import Failed, Rank, Site, connect, packet_site, preloads

from harp import paths
from tools.hosts.lab import Lab
from tools.hosts.rails import add_rails

FANOUT = "cannot steer frames to 4 instances: Protocol not available; set instances = 1"


def without_fanout(site: Site) -> Site:
    library = paths.build_dir() / "tests/hosts/libno_fanout.so"
    site.environment.update({"LD_PRELOAD": str(library), "HARP_AGENT": ""})
    return site


def site_without_fanout(folder: Path, lab: Lab, keys: str) -> Site:
    site = packet_site(folder, lab.hosts[0]).configure(
        f"device = packet:{lab.hosts[0].interface}\naddress = kernel\n{keys}"
    )
    return without_fanout(site)


@preloads
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


@preloads
def test_other_nics_have_one_instance_then(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    """They start at their first use, when it is too late for another number."""
    rails = add_rails(make_lab(), 2)
    sites = [rails.site(tmp_path / str(host.index), host) for host in rails.lab.hosts]
    for nic in range(2):
        sites[0].configure(f"device = packet:nic{nic}\n", f"ztcp{nic}.conf")
    without_fanout(sites[0])
    with Rank(sites[0]) as one, Rank(sites[1]) as other:
        one.init(2)
        other.init(2)
        connect(one, other, devices=(1, 1)).move()
        (warning,) = one.warnings
        assert "packet:nic0 has one instance instead of 2: " in warning
        used = {process.device: len(process.instances) for process in sites[0].published()}
        assert used == {"packet:nic0": 1, "packet:nic1": 1}


@preloads
def test_explicit_number_of_instances_is_refused(lab: Lab, tmp_path: Path) -> None:
    with Rank(site_without_fanout(tmp_path, lab, "instances = 4\n")) as rank:
        with pytest.raises(Failed):
            rank.init()
        (warning,) = rank.warnings
        assert FANOUT in warning


def test_limit_of_open_files_is_named(lab: Lab, tmp_path: Path) -> None:
    site = packet_site(tmp_path, lab.hosts[0], instances=4)
    with Rank(site) as rank:
        rank.init()
        files = max(int(one.name) for one in Path(f"/proc/{rank.process.pid}/fd").iterdir())
        resource.prlimit(rank.process.pid, resource.RLIMIT_NOFILE, (files + 1, files + 1))
        with pytest.raises(Failed):
            for _ in range(64):
                rank.listen()
        (warning,) = rank.warnings
        assert "Too many open files; raise the limit of open files (ulimit -n)" in warning
