# SPDX-License-Identifier: Apache-2.0
"""The mark of tests that need PyTorch, which is no dependency of the package."""

from __future__ import annotations

import importlib.util

import pytest

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="no torch here: pip install torch"
)
