# SPDX-License-Identifier: Apache-2.0
"""Each dialogue is held twice: with HARP's stack, and with Linux's TCP, which it is to agree with.

Where HARP differs on purpose the dialogue asks `d.who`, and says why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harp.testing.dialogue import Dialogue
from harp.testing.linux_dialogue import LinuxDialogue, why_not


@pytest.fixture(params=["harp", "linux"])
def either(request: pytest.FixtureRequest) -> Iterator[Callable[..., Dialogue]]:
    """Makes a Dialogue with one or the other; keywords are the stack's configuration."""
    if request.param == "linux" and (why_not() or "SANITIZER_RUNTIME" in os.environ):
        pytest.skip(why_not() or "the kernel is not what the sanitizers look at")
    made: list[LinuxDialogue] = []

    def make(**config: Any) -> Dialogue:
        if request.param == "harp":
            return Dialogue(**config)
        made.append(LinuxDialogue(**config))
        return made[-1]

    yield make
    for one in made:
        one.close()
