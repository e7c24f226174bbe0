# SPDX-License-Identifier: Apache-2.0
"""What tests of harp.torch share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from harp import paths
from tools.hosts.ranks import Site, remove_wire, wire_path, wire_site
from tools.hosts.torch_job import ROOT

PROGRAMS = Path(__file__).resolve().parent / "programs"


def run_program(site: Site, program: str, *args: object, **variables: str) -> Any:
    """Runs a program on a host. Returns the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / program), *map(str, args)],
        env={**site.all_environment(), **variables},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run_over_loopback(program: str) -> Any:
    """Runs a program whose ranks use the kernel's TCP on this machine. Returns the JSON that it
    prints."""
    libraries = [str(paths.collectives_library()), str(paths.kernel_plugin_path())]
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / program), *libraries],
        env={**os.environ, "NCCL_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run_alone(program: str, folder: Path, **variables: str) -> Any:
    """Runs a program in one process, whose wire ends nowhere. Returns the JSON that it prints."""
    wire = wire_path()
    try:
        return run_program(wire_site(folder, wire, 1), program, PYTHONPATH=str(ROOT), **variables)
    finally:
        remove_wire(wire)
