# SPDX-License-Identifier: Apache-2.0
"""The progress line of rank 0, on standard error."""

from __future__ import annotations

import sys
import time

EVERY_S = 5.0  # between two lines in a log file


class Progress:
    """One line that changes on a terminal; else a line for each phase, and one every EVERY_S
    seconds. silent: for ranks that do not report."""

    def __init__(self, silent: bool) -> None:
        self._silent = silent
        self._live = sys.stderr.isatty()
        self._begun = self._last = time.monotonic()
        self._phase = ""

    def say(self, phase: str, detail: str = "") -> None:
        """What is done now."""
        if self._silent:
            return
        now = time.monotonic()
        if not self._live and phase == self._phase and now - self._last < EVERY_S:
            return
        text = f"harp check: {now - self._begun:4.1f} s: {phase}{f', {detail}' if detail else ''}"
        sys.stderr.write(f"\r\x1b[K{text}" if self._live else f"{text}\n")
        sys.stderr.flush()
        self._phase, self._last = phase, now

    def end(self) -> None:
        """Removes the line of a terminal."""
        if self._live and not self._silent:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
