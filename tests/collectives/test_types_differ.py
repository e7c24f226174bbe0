# SPDX-License-Identifier: Apache-2.0
"""Calls whose tensors differ in type are refused, see programs/types_differ.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from torch_tests import PROGRAMS

from tools.hosts.ranks import remove_wire, wire_path, wire_site
from tools.hosts.torch_job import ROOT
from tools.hosts.torch_mark import needs_torch


@needs_torch
def test_input_and_output_must_have_one_type(tmp_path: Path) -> None:
    wire = wire_path()  # nobody takes its other end
    environment = {**wire_site(tmp_path, wire, 1).all_environment(), "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            [sys.executable, str(PROGRAMS / "types_differ.py")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
        )
    finally:
        remove_wire(wire)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said.pop("well") == "accepted"
    assert len(said) == 10
    for sentence in said.values():
        assert "must have one type, and these have torch.float32, torch.int32" in sentence, said
