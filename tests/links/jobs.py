# SPDX-License-Identifier: Apache-2.0
"""The networks of a test: one network for each test, or all in the long form."""

from __future__ import annotations

import os

import pytest

FULL = bool(os.environ.get("HARP_TEST_FULL"))  # run the long forms


def over(names: str, *cases: tuple[object, ...]) -> pytest.MarkDecorator:
    """Parametrizes a test by names; the first is "join", the network. The long form runs every case
    on every network."""
    if FULL:
        rest = list(dict.fromkeys(case[1:] for case in cases))
        cases = tuple((joint, *case) for joint in ("wire", "packet") for case in rest)
    ids = ["-".join(map(str, case)) for case in cases]
    return pytest.mark.parametrize(names, cases, ids=ids, indirect=["join"])
