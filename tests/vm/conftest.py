# SPDX-License-Identifier: Apache-2.0
"""Guests for tests. Only ./tools/test --vm collects them: it names the kernel's folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guest import DATA, MANAGEMENT, TWINS, Guest

from harp.testing.lab import Lab

KERNEL = os.environ.get("HARP_TEST_VM")  # what tests/vm/prepare has made
collect_ignore_glob = [] if KERNEL else ["test_*.py"]


def _boot(flavour: str, factory: pytest.TempPathFactory) -> Iterator[Guest]:
    assert KERNEL
    iommu = flavour == "iommu"
    nics = (MANAGEMENT, DATA, *TWINS) if iommu else (MANAGEMENT, DATA)
    folder = factory.mktemp(flavour)
    with Lab() as lab, Guest(Path(KERNEL), lab.hosts[0], folder, iommu, nics) as guest:
        yield guest


# One alone, so that the other can run beside it.
FLAVOURS = os.environ.get("HARP_TEST_VM_FLAVOUR", "iommu no-iommu").split()


@pytest.fixture(scope="session", params=FLAVOURS)
def guest(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A guest with two NICs: one has the default route. Behind an IOMMU two more."""
    yield from _boot(request.param, tmp_path_factory)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """A failure's report ends with what the guest's console said, and where that is kept."""
    report = yield
    guest = getattr(item, "funcargs", {}).get("guest")
    if report.failed and isinstance(guest, Guest) and guest.console.exists():
        text = guest.console.read_text(errors="replace").splitlines()
        report.sections.append((f"console, whole in {guest.console}", "\n".join(text[-30:])))
    return report
