# SPDX-License-Identifier: Apache-2.0
"""What tests of harp.torch share."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tools.hosts.ranks import remove_wire, wire_path, wire_site
from tools.hosts.torch_job import ROOT

PROGRAMS = Path(__file__).resolve().parent / "programs"


def run_alone(program: str, folder: Path, **variables: str) -> Any:
    """Runs a program in one process, whose wire ends nowhere. Returns the JSON that it prints."""
    wire = wire_path()
    site = wire_site(folder, wire, 1)
    environment = {**site.all_environment(), "PYTHONPATH": str(ROOT), **variables}
    try:
        done = subprocess.run(
            [sys.executable, str(PROGRAMS / program)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=50,
        )
    finally:
        remove_wire(wire)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
