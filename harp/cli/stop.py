# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, SIGTERM and SIGHUP as a request, for commands that must end other things before
themselves; and the signals of a program that takes this process's place."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Optional


def before_exec() -> None:
    """Gives the next program the default actions of the signals that Python ignores, since exec
    keeps an ignored signal ignored: `yes | head` would end with an error in a job."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


class Stop:
    """Set by Ctrl-C, SIGTERM, or SIGHUP when the terminal is closed. A second Ctrl-C interrupts the
    program at once, by KeyboardInterrupt. An ignored SIGHUP stays ignored, as nohup wants it."""

    def __init__(self) -> None:
        self.requested = False

    def _ask(self, number: int, frame: Optional[FrameType]) -> None:
        self.requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def listening(self) -> Iterator[None]:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        before = [signal.signal(number, self._ask) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before):
                signal.signal(number, handler)
