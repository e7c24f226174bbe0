# SPDX-License-Identifier: Apache-2.0
"""pytest fixtures for packet-level tests.

`stack(**config)` makes a stack, `dialogue(**config)` a scripted dialogue with a stack, and
`wire(a, b, **options)` a network of two. A test that takes `either` in place of `dialogue` runs
twice: with HARP's stack, and with Linux's TCP as the reference. Where HARP differs on purpose, the
test asks `d.who` and says why. The dialogues and captured wires of a test that fails are written as
pcapng to its tmp_path, and the report names the files.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

_MADE = pytest.StashKey[list[Any]]()


def _remember(request: pytest.FixtureRequest, thing: Any) -> None:
    request.node.stash.setdefault(_MADE, []).append(thing)


@pytest.fixture
def stack() -> Callable[..., Any]:
    """Makes a stack; keywords are fields of struct harp_stack_config."""
    from harp.testing.dialogue import make_stack

    return make_stack


@pytest.fixture
def dialogue(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """Makes a Dialogue; see harp.testing.dialogue."""
    from harp.testing.dialogue import Dialogue

    def make(**config: Any) -> Dialogue:
        made = Dialogue(**config)
        _remember(request, made)
        return made

    return make


@pytest.fixture
def ahead_of_other_processes() -> Iterator[None]:
    """Runs the test with real-time priority, where this is allowed. Linux's timers run by the
    clock, and a test that waits for the processor would answer late."""
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    yield
    os.sched_setscheduler(0, policy, priority)


@pytest.fixture(params=["harp", "linux"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes a Dialogue with HARP's stack, or with Linux's; keywords are HARP's configuration."""
    from harp.testing.dialogue import Dialogue
    from harp.testing.linux_dialogue import LinuxDialogue, why_not

    if request.param == "linux" and (why_not() or "SANITIZER_RUNTIME" in os.environ):
        pytest.skip(why_not() or "the kernel is not what the sanitizers look at")
    made: list[Dialogue] = []
    if request.param == "linux":
        request.getfixturevalue("ahead_of_other_processes")

    def make(**config: Any) -> Dialogue:
        made.append((Dialogue if request.param == "harp" else LinuxDialogue)(**config))
        _remember(request, made[-1])
        return made[-1]

    yield make
    for one in made:
        if isinstance(one, LinuxDialogue):
            one.close()


@pytest.fixture
def wire(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """Makes a Wire between two stacks; see harp.testing.wire."""
    from harp.testing.wire import Wire

    def make(a: Any, b: Any, **options: Any) -> Wire:
        made = Wire(a, b, **options)
        _remember(request, made)
        return made

    return make


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, None]:
    """Writes the captures of a failed test and names them in its report."""
    outcome = yield
    report = outcome.get_result()
    if report.when == "teardown":
        item.stash[_MADE] = []  # pytest keeps the items, and these objects are large
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.when != "call" or not report.failed or folder is None:
        return
    made_here: list[Any] = item.stash.get(_MADE, [])
    for number, made in enumerate(made_here):
        path = folder / f"{type(made).__name__.lower()}{number}.pcapng"
        made.save(path)
        report.sections.append(("capture", str(path)))
