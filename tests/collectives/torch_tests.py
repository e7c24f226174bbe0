# SPDX-License-Identifier: Apache-2.0
"""What tests of harp.torch share."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).resolve().parent / "programs"

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="no torch here: pip install torch"
)
