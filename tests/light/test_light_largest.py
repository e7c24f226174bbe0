# SPDX-License-Identifier: Apache-2.0
"""The choice of the largest values is the one of torch.topk: from a sample, and in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.torch

TOTAL = 131_077
KINDS = ["random", "mostly zero", "sorted", "not finite", "equal", "misleading"]
COUNTS = [1, 1311, TOTAL // 4, TOTAL]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of torch would wait for each other on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random_values(kind: str, seed: int = 7) -> Any:
    """Values of both signs."""
    import torch

    from harp.light.largest import SAMPLES

    values = torch.randn(TOTAL, generator=torch.Generator().manual_seed(seed))
    if kind == "mostly zero":
        values[torch.arange(TOTAL) % 500 != 3] = -0.0
    if kind == "sorted":
        values = values[values.abs().sort().indices]
    if kind == "not finite":
        values[[5, 70_000, 70_001]] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    if kind == "equal":
        values = torch.where(values < 0, -2.0, 2.0)
    if kind == "misleading":  # the sample has the largest values alone
        values[:: TOTAL // SAMPLES] = 100.0
    return values


def same_sizes(one: Any, other: Any) -> bool:
    import torch

    sizes = [values.abs().nan_to_num(nan=torch.inf).sort().values for values in (one, other)]
    return torch.equal(*sizes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", COUNTS)
def test_largest_values_are_those_of_topk(kind: str, count: int) -> None:
    import torch

    from harp.light.largest import SAMPLES, largest

    assert TOTAL > 4 * SAMPLES
    sizes = random_values(kind).abs()
    found = largest(sizes, count)
    assert found.unique().numel() == count
    assert same_sizes(sizes[found], torch.topk(sizes, count).values)


def added_and_chosen(kind: str, count: int, dtype: Any) -> tuple[Any, ...]:
    """The residual, the gradient, indices and values after the choice."""
    from harp.light.largest import add_and_choose

    # The halves of equal values are equal, too. Zeros keep their sign, and -inf + inf is no number.
    rest, flat = random_values(kind).to(dtype) / 2, random_values(kind).to(dtype) / 2
    flat[70_001] *= -1
    indices, values = add_and_choose(rest, flat, count)
    return rest, flat, indices, values


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", COUNTS)
def test_one_pass_chooses_what_the_steps_of_torch_choose(
    kind: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same values of the same places in the same order, and the same rest: bit for bit."""
    import torch

    from harp.light import native

    if native.library() is None:
        pytest.skip("no C library: meson compile -C build")
    in_one_pass = added_and_chosen(kind, count, torch.float32)
    monkeypatch.setattr(native, "library", lambda: None)
    by_torch = added_and_chosen(kind, count, torch.float32)
    for one, other in zip(in_one_pass, by_torch):
        assert torch.equal(*(x if x.dtype != torch.float32 else x.view(torch.int32)
                             for x in (one, other.to(one.dtype))))  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("kind", ["random", "not finite"])
def test_sums_are_chosen_and_the_gradient_is_used_up(kind: str, dtype: str) -> None:
    import torch

    rest, flat, indices, values = added_and_chosen(kind, 1311, getattr(torch, dtype))
    assert rest.dtype == values.dtype == getattr(torch, dtype)
    assert not flat.any()
    assert torch.equal(rest[indices.long()].nan_to_num(), values.nan_to_num())
    assert same_sizes(values, torch.topk(rest.abs(), 1311).values)
    right = random_values(kind).to(rest.dtype)
    right[70_001] = torch.nan if kind == "not finite" else 0.0
    assert torch.equal(rest.nan_to_num(), right.nan_to_num())


def test_memory_that_is_not_contiguous_is_chosen_by_torch() -> None:
    import torch

    from harp.light.largest import add_and_choose

    wide = torch.zeros(2 * TOTAL)
    rest, flat = wide[::2], random_values("random")
    right = flat.clone()
    indices, values = add_and_choose(rest, flat, 1311)
    assert torch.equal(rest, right) and not wide[1::2].any()
    assert same_sizes(values, torch.topk(right.abs(), 1311).values)
