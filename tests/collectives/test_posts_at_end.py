# SPDX-License-Identifier: Apache-2.0
"""Threads that post while another one ends their group, see programs/posts_at_end.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_tests import run_alone


@pytest.mark.torch
def test_posts_beside_the_end_of_a_group_are_refused(tmp_path: Path) -> None:
    # The C library overwrites freed memory, so that its use does not go unnoticed.
    told = run_alone("posts_at_end.py", tmp_path, MALLOC_PERTURB_="165")
    for end, word in {"shutdown": "was shut down", "abort": "aborted the process group"}.items():
        assert all(len(said) == 3 for said in told[end]), told
        assert all(word in sentence for said in told[end] for sentence in said), told
