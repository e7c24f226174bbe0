# SPDX-License-Identifier: Apache-2.0
"""A signal's handler that ends a group, see programs/ends_in_handler.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_tests import run_alone


@pytest.mark.torch
def test_handler_may_end_a_group_except_amid_its_use(tmp_path: Path) -> None:
    # The C library overwrites freed memory, so that its use does not go unnoticed.
    told = run_alone("ends_in_handler.py", tmp_path, MALLOC_PERTURB_="165")
    assert "cannot end the process group" in told["post"]["call"], told
    assert told["post"]["next"] == "well", told
    assert "cannot end the process group" in told["abort"]["call"], told
    assert "was shut down" in told["future"]["next"], told
    assert told["future"]["seconds"] < 5, told
