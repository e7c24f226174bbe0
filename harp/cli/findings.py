# SPDX-License-Identifier: Apache-2.0
"""What `harp doctor` finds: a line with its level."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """`level`: "ok", "note" (works, but not as one might think) or "fault"."""

    level: str
    about: str
    text: str


def ok(about: str, text: str) -> Finding:
    return Finding("ok", about, text)


def note(about: str, text: str) -> Finding:
    return Finding("note", about, text)


def fault(about: str, text: str) -> Finding:
    return Finding("fault", about, text)
