# SPDX-License-Identifier: Apache-2.0
"""The choice of the largest values from a sample is the one of torch.topk."""

from __future__ import annotations

from typing import Any

import pytest

from tools.hosts.torch_mark import needs_torch

pytestmark = needs_torch

TOTAL = 131_077


def random_sizes(kind: str) -> Any:
    import torch

    values = torch.randn(TOTAL, generator=torch.Generator().manual_seed(7)).abs()
    if kind == "mostly zero":
        values[torch.arange(TOTAL) % 500 != 3] = 0
    if kind == "sorted":
        values = values.sort().values
    if kind == "not finite":
        values[[5, 70_000]] = torch.tensor([float("nan"), float("inf")])
    if kind == "equal":
        values[:] = 2.0
    return values


@pytest.mark.parametrize("kind", ["random", "mostly zero", "sorted", "not finite", "equal"])
@pytest.mark.parametrize("count", [1, 1311, TOTAL // 4, TOTAL])
def test_largest_values_are_those_of_topk(kind: str, count: int) -> None:
    import torch

    from harp.light.topk import SAMPLES, largest

    assert TOTAL > 4 * SAMPLES
    sizes = random_sizes(kind)
    found = largest(sizes, count)
    assert found.unique().numel() == count
    both = (sizes[found], torch.topk(sizes, count).values)
    wanted, right = (one.nan_to_num(nan=torch.inf).sort().values for one in both)
    assert torch.equal(wanted, right)
