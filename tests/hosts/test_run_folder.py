# SPDX-License-Identifier: Apache-2.0
"""The run folder is optional: without it, or if it is full, the job runs with one warning."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import Rank, Site, connect, packet_site

from tools.hosts.lab import Lab

# Mounts a tmpfs in a new mount namespace of the rank. 64 KiB are too small for a statistics file.
SCRIPT = 'mount -t tmpfs -o {options} none "{where}" && exec "$@"'


def mounted(site: Site, where: Path, options: str) -> Site:
    """The site with a tmpfs over a folder, visible only to its processes."""
    script = SCRIPT.format(options=options, where=where)
    site.prefix = [*site.prefix, "unshare", "-m", "sh", "-c", script, "sh"]
    return site


def own_fallback(site: Site) -> Site:
    """The site with a /dev/shm of its own. Commands of other tests read the machine's."""
    return mounted(site, Path("/dev/shm"), "size=16m")


def runs(first: Site, second: Site) -> list[str]:
    """Runs a job between the two sites. Returns the warnings of the first."""
    with Rank(first) as a, Rank(second) as b:
        a.init()
        b.init()
        connect(a, b).move()
        connect(b, a).move()
        for rank in (a, b):
            rank.do("finalize")
        assert b.warnings == []
        return a.warnings


@pytest.fixture
def sites(lab: Lab, tmp_path: Path) -> tuple[Site, Site]:
    one, other = (packet_site(tmp_path / str(host.index), host) for host in lab.hosts)
    return one, other


FALLBACK = "statistics go to /dev/shm/harp-0 instead: run 'harp setup', or name a writable folder"


def test_usable_run_folder_gives_no_warning(sites: tuple[Site, Site]) -> None:
    assert runs(*sites) == []


def test_missing_run_folder_falls_back(sites: tuple[Site, Site]) -> None:
    sites[0].environment["HARP_RUN_DIR"] = "/nowhere/run"
    (warning,) = runs(own_fallback(sites[0]), sites[1])
    assert "run directory /nowhere/run: No such file or directory" in warning
    assert FALLBACK in warning


def test_harp_stat_reads_fallback_folder(sites: tuple[Site, Site]) -> None:
    site = own_fallback(sites[0])
    site.environment["HARP_RUN_DIR"] = "/nowhere/run"
    with Rank(site) as rank:
        rank.init()
        args = ["nsenter", "-m", "-t", str(rank.process.pid)]
        args += [sys.executable, "-m", "harp", "stat", "--json", "--pid", str(rank.process.pid)]
        environment = site.all_environment()
        said = subprocess.run(
            args, capture_output=True, text=True, timeout=20, check=True, env=environment
        )
        (process,) = json.loads(said.stdout)["processes"]
        assert process["pid"] == rank.process.pid
        rank.do("finalize")


def test_read_only_run_folder_falls_back(sites: tuple[Site, Site]) -> None:
    first = own_fallback(sites[0])
    (warning,) = runs(mounted(first, first.run_folder, "ro"), sites[1])
    assert f"run directory {sites[0].run_folder}: Read-only file system" in warning
    assert FALLBACK in warning


def test_full_run_folder_falls_back(sites: tuple[Site, Site]) -> None:
    first = own_fallback(sites[0])
    (warning,) = runs(mounted(first, first.run_folder, "size=64k"), sites[1])
    assert f"run directory {sites[0].run_folder}: No space left on device" in warning
    assert FALLBACK in warning


def test_full_dev_shm_is_ignored_if_unused(sites: tuple[Site, Site]) -> None:
    assert runs(mounted(sites[0], Path("/dev/shm"), "size=64k"), sites[1]) == []


@pytest.mark.parametrize("options,error", [("size=64k", "No space left"), ("ro", "Read-only file")])
def test_unusable_run_folder_and_fallback_do_not_stop_job(
    sites: tuple[Site, Site], options: str, error: str
) -> None:
    """The counters have no path then, and the job runs."""
    sites[0].environment["HARP_RUN_DIR"] = "/nowhere/run"
    (warning,) = runs(mounted(sites[0], Path("/dev/shm"), options), sites[1])
    assert "run directory /nowhere/run: No such file or directory, and /dev/shm/harp-0: " in warning
    assert error in warning
    assert "only root sees this process, by 'harp stat --containers'" in warning
