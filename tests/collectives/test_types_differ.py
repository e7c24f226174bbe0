# SPDX-License-Identifier: Apache-2.0
"""Calls whose tensors differ in type are refused, see programs/types_differ.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_tests import run_alone


@pytest.mark.torch
def test_input_and_output_must_have_one_type(tmp_path: Path) -> None:
    said = run_alone("types_differ.py", tmp_path)
    assert said.pop("well") == "accepted"
    assert len(said) == 10
    for sentence in said.values():
        assert "must have one type, and these have torch.float32, torch.int32" in sentence, said
