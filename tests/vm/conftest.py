# SPDX-License-Identifier: Apache-2.0
"""Guests for tests. They run only with ./tools/test --vm, which sets the kernel's folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dpdk_guest import configured
from guest import DATA, MANAGEMENT, TWINS, Guest

from tools.hosts.lab import Lab

KERNEL = os.environ.get("HARP_TEST_VM")  # the folder made by tests/vm/prepare
collect_ignore_glob = [] if KERNEL else ["test_*.py"]


def _boot(flavour: str, config: pytest.Config, folder: Path, disk: bool = False) -> Iterator[Guest]:
    assert KERNEL
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(f"vm: {flavour}: {text}")

    iommu = flavour == "iommu"
    nics = (MANAGEMENT, DATA, *TWINS) if iommu else (MANAGEMENT, DATA)
    with Lab() as lab, Guest(Path(KERNEL), lab.hosts[0], folder, iommu, nics, say, disk) as guest:
        yield guest
        with contextlib.suppress(OSError):  # the guest may have died
            say(f"ends after {guest.cpu_s():.0f} s of CPU time")


# The variable selects one flavour, so that both can run in parallel.
FLAVOURS = os.environ.get("HARP_TEST_VM_FLAVOUR", "iommu no-iommu").split()


@pytest.fixture(scope="session", params=FLAVOURS)
def guest(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A guest with two NICs, one with the default route. With an IOMMU it has two more."""
    yield from _boot(request.param, request.config, tmp_path_factory.mktemp(request.param))


@pytest.fixture(params=FLAVOURS)
def guest_with_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A guest of one test, with a disk that survives `reset`."""
    folder = tmp_path / "guest"
    folder.mkdir()
    yield from _boot(request.param, request.config, folder, disk=True)


@pytest.fixture(scope="session")
def given(guest: Guest) -> Iterator[Guest]:
    """The guest with its second NIC set up for HARP, once for all tests that need it."""
    with configured(guest, "--device", f"dpdk:{DATA.name}"):
        yield guest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs the tests with a NIC set up for HARP last and together."""
    items.sort(key=lambda item: "given" in getattr(item, "fixturenames", ()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Adds the end of the guest's console, and its path, to the report of a failure."""
    report = yield
    arguments = getattr(item, "funcargs", {})
    guest = arguments.get("guest") or arguments.get("guest_with_disk")
    if report.failed and isinstance(guest, Guest) and guest.console.exists():
        text = guest.console.read_text(errors="replace").splitlines()
        report.sections.append((f"console, whole in {guest.console}", "\n".join(text[-30:])))
    return report
