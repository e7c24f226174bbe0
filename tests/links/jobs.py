# SPDX-License-Identifier: Apache-2.0
"""What joins the ranks of a test: one joint for each test, or every one in the long form."""

from __future__ import annotations

import os

import pytest

FULL = bool(os.environ.get("HARP_TEST_FULL"))  # the long forms, too


def over(names: str, *cases: tuple[object, ...]) -> pytest.MarkDecorator:
    """Parametrizes a test by names, "join" first: what joins the sites. The long form takes
    every case over every joint."""
    if FULL:
        rest = list(dict.fromkeys(case[1:] for case in cases))
        cases = tuple((joint, *case) for joint in ("wire", "packet") for case in rest)
    ids = ["-".join(map(str, case)) for case in cases]
    return pytest.mark.parametrize(names, cases, ids=ids, indirect=["join"])
