# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the packet-level tests, also where the package is not installed, and the marks
quick_cases and torch."""

import importlib.metadata
from collections import Counter

import pytest

pytest_plugins = ["harp.testing.plugin"]


def _has_torch() -> bool:
    """pip writes the list of files last."""
    try:
        return bool(importlib.metadata.distribution("torch").files)
    except importlib.metadata.PackageNotFoundError:
        return False


NO_TORCH = pytest.mark.skip(reason="no PyTorch here: .venv/bin/pip install torch")


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the other cases of a test with quick_cases(N) slow. The sanitizers still run them.
    Skips the tests marked torch where it is not installed."""
    cases: Counter[str] = Counter()
    no_torch = not _has_torch()
    for item in items:
        if no_torch and item.get_closest_marker("torch"):
            item.add_marker(NO_TORCH)
        mark = item.get_closest_marker("quick_cases")
        if mark is None or item.get_closest_marker("slow"):
            continue
        test = item.nodeid.partition("[")[0]
        cases[test] += 1
        if cases[test] > mark.args[0]:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.sanitized)
