# SPDX-License-Identifier: Apache-2.0
"""The residuals of a bucket lie in one buffer, and follow their parameters to other buckets."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.torch


def bucket(*shapes: tuple[int, ...], dtype: Any = None) -> tuple[Any, list[Any]]:
    """A buffer, and the views of parts with these shapes."""
    import torch

    flat = torch.zeros(sum(torch.Size(one).numel() for one in shapes), dtype=dtype)
    places = flat.split([torch.Size(one).numel() for one in shapes])
    return flat, [place.view(one) for place, one in zip(places, shapes)]


def parameters(count: int) -> list[Any]:
    import torch

    return [torch.nn.Parameter(torch.zeros(1)) for _ in range(count)]


def test_the_same_bucket_has_the_same_buffer() -> None:
    from harp.light.residuals import buffer_of

    names, kept = parameters(2), {}
    first = buffer_of(kept, bucket((2, 3), (4,))[0], [])
    for _ in range(2):
        flat, views = bucket((2, 3), (4,))
        found = buffer_of(kept, flat, list(zip(names, views)))
        assert found.data_ptr() == kept[names[0]].data_ptr() != first.data_ptr()
        found += 1
    assert kept[names[0]].tolist() == [[2.0] * 3] * 2 and kept[names[1]].tolist() == [2.0] * 4


def test_residuals_follow_their_parameters() -> None:
    import torch

    from harp.light.residuals import buffer_of

    one, two, three = parameters(3)
    kept: dict[Any, Any] = {}

    def step(*named: tuple[Any, tuple[int, ...]], dtype: Any = None) -> list[float]:
        flat, views = bucket(*(shape for _, shape in named), dtype=dtype)
        parts = [(parameter, view) for (parameter, _), view in zip(named, views)]
        found = buffer_of(kept, flat, parts)
        assert found.shape == flat.shape and found.dtype == flat.dtype
        assert found.untyped_storage().nbytes() == flat.untyped_storage().nbytes()
        values: list[float] = found.tolist()
        return values

    assert step((one, (2,)), (two, (2,))) == [0.0] * 4
    kept[one] += 1
    kept[two] += 2
    assert step((two, (2,)), (one, (2,))) == [2.0, 2.0, 1.0, 1.0]  # equal shapes, other places
    assert step((one, (2,)), (three, (2,))) == [1.0, 1.0, 0.0, 0.0]  # a part of the buffer
    assert step((two, (2,))) == [2.0, 2.0]
    assert step((two, (2,)), dtype=torch.float64) == [2.0, 2.0]
    kept[two] = torch.tensor([3.0, 4.0])  # of a checkpoint
    assert step((three, (2,)), (two, (2,))) == [0.0, 0.0, 3.0, 4.0]


def test_order_of_dimensions_is_that_of_the_gradient() -> None:
    import torch

    from harp.light.residuals import buffer_of

    (name,), kept = parameters(1), {}
    flat = torch.zeros(6)
    buffer_of(kept, flat, [(name, flat.view(2, 3))])
    kept[name].copy_(torch.arange(6.0).view(2, 3))
    turned = flat.view(3, 2).t()  # as of channels_last
    found = buffer_of(kept, flat, [(name, turned)])
    assert torch.equal(kept[name], torch.arange(6.0).view(2, 3))
    assert found.tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]


def test_a_residual_of_another_size_is_refused() -> None:
    import torch

    from harp.light.residuals import buffer_of

    (name,) = parameters(1)
    flat = torch.zeros(3)
    with pytest.raises(RuntimeError, match="shape"):
        buffer_of({name: torch.zeros(2)}, flat, [(name, flat)])
