# SPDX-License-Identifier: Apache-2.0
"""What the backend asks of tensors, and how it looks at their elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import torch

from harp.torch import library as lib


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one piece of memory, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def check(tensors: Sequence[torch.Tensor], any_order: bool = False) -> None:
    """Raises HarpError for a tensor that the library cannot use. any_order: dense tensors whose
    dimensions have another order are right, too."""
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise lib.HarpError(
                f"the backend harp moves CPU tensors, and this one is on {tensor.device}: move it "
                "by .cpu(), or use the backend nccl with HARP as its net plugin"
            )
        if tensor.layout != torch.strided:
            raise lib.HarpError(
                f"the backend harp moves no {tensor.layout} tensors: use .to_dense()"
            )
        if not (tensor.is_contiguous() or tensor.numel() == 0 or (any_order and _is_dense(tensor))):
            raise lib.HarpError(
                f"a tensor with shape {tuple(tensor.shape)} and stride {tensor.stride()} is not "
                "contiguous: use .contiguous()"
            )


def check_alike(tensors: Sequence[torch.Tensor]) -> None:
    """Checks the tensors of one operation, which moves bytes from some to others. Raises HarpError
    also if their types differ."""
    check(tensors)
    kinds = {tensor.dtype for tensor in tensors}
    if len(kinds) > 1:
        raise lib.HarpError(
            "the inputs and outputs of a call must have one type, and these have "
            f"{', '.join(sorted(map(str, kinds)))}: convert them first"
        )


def one(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The only tensor of a list. Raises HarpError for any other number."""
    if len(tensors) != 1:
        raise lib.HarpError(f"expected one tensor for each rank, and got {len(tensors)}")
    return tensors[0]


def as_numbers(tensor: torch.Tensor, reduction: int) -> tuple[torch.Tensor, int]:
    """The tensor as the library reduces it, and its harp_dtype. A complex number is summed as two
    real ones. Raises HarpError for types without reductions."""
    if tensor.is_complex() and reduction in (lib.SUM, lib.AVERAGE):
        tensor = torch.view_as_real(tensor)
    dtype = lib.DTYPES.get(tensor.dtype)
    if dtype is None:
        raise lib.HarpError(
            f"the backend harp has no such reduction of {tensor.dtype}: convert the tensor first"
        )
    return tensor, dtype


def premultiplied(
    tensor: torch.Tensor, factor: Optional[float], in_place: bool = False
) -> torch.Tensor:
    """This rank's operand of a PREMUL_SUM: the tensor, or its product with the factor. Products of
    16-bit floats are rounded. in_place: the tensor takes the product. Raises HarpError for
    integers."""
    if factor is None:
        return tensor
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise lib.HarpError(f"PREMUL_SUM multiplies floats, and not {tensor.dtype}: use SUM")
    return tensor.mul_(factor) if in_place else tensor * factor


def parts(tensor: torch.Tensor, sizes: Sequence[int], ranks: int) -> list[torch.Tensor]:
    """Cuts a tensor along its first dimension: into these sizes, or equally. Raises HarpError if
    they do not fit."""
    length = tensor.shape[0] if tensor.dim() else tensor.numel()
    if not sizes:
        if length % ranks:
            raise lib.HarpError(
                f"the first dimension, {length}, is no multiple of the {ranks} ranks: pad the "
                "tensor, or give the sizes of the parts"
            )
        sizes = [length // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != length:
        raise lib.HarpError(
            f"{len(sizes)} parts of together {sum(sizes)} do not fit a first dimension of {length} "
            f"and {ranks} ranks"
        )
    return list(torch.split(tensor, list(sizes)))
