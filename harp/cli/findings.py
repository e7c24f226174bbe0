# SPDX-License-Identifier: Apache-2.0
"""The findings of `harp doctor`: a line of text with its level."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """`level`: "ok", "note" (works, but perhaps not as expected) or "fault"."""

    level: str
    about: str
    text: str


def ok(about: str, text: str) -> Finding:
    return Finding("ok", about, text)


def note(about: str, text: str) -> Finding:
    return Finding("note", about, text)


def fault(about: str, text: str) -> Finding:
    return Finding("fault", about, text)
