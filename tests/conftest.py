# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the packet-level tests, also where the package is not installed, and the mark
quick_cases."""

from collections import Counter

import pytest

pytest_plugins = ["harp.testing.plugin"]


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the other cases of a test with quick_cases(N) slow. The sanitizers still run them."""
    cases: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("quick_cases")
        if mark is None or item.get_closest_marker("slow"):
            continue
        test = item.nodeid.partition("[")[0]
        cases[test] += 1
        if cases[test] > mark.args[0]:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.sanitized)
