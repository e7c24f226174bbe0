# SPDX-License-Identifier: Apache-2.0
"""The C library of collectives, harp/collectives/collectives.h, by ctypes.

Numbers and structures are those of the header. Calls release Python's lock, so any thread may
call. Functions raise HarpError with the library's sentence.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_void_p,
)
from functools import lru_cache
from typing import Any, Optional

import torch
import torch.distributed as dist

from harp import paths

ERROR, HANDLE, NAME, ANY_RANK = 768, 160, 80, -1

# enum harp_kind
(
    ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER, BARRIER,
    SEND, RECEIVE,
) = range(11)  # fmt: skip

# enum harp_dtype, by torch's name: older versions of torch lack some of them.
_DTYPES = (
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64",
    "float16", "bfloat16", "bool",
)  # fmt: skip
DTYPES = {
    getattr(torch, name): number for number, name in enumerate(_DTYPES) if hasattr(torch, name)
}

# enum harp_reduction
_REDUCTIONS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG")
SUM, AVERAGE = 0, 7

# enum harp_algorithm, and the number of classes of sizes
ALGORITHMS = ("recursive doubling", "pairwise exchange", "halving and doubling", "ring")
SIZE_CLASSES = 8

PENDING, DONE, FAILED = 0, 1, -1


class HarpError(getattr(dist, "DistBackendError", RuntimeError)):  # type: ignore[misc]
    """HARP cannot do what torch asked for. The message names rank, host and remedy."""


class View(ctypes.Structure):
    """struct harp_view"""

    _fields_ = [("data", c_void_p), ("bytes", c_size_t)]


class Call(ctypes.Structure):
    """struct harp_call"""

    _fields_ = [
        ("kind", c_int32),
        ("dtype", c_int32),
        ("reduction", c_int32),
        ("peer", c_int32),
        ("tag", c_int32),
        ("waits", c_int32),
        ("timeout_ms", c_int64),
        ("inputs", POINTER(View)),
        ("outputs", POINTER(View)),
    ]


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "harp_collectives_open": (c_int, [c_char_p, c_char_p]),
    "harp_group_create": (c_void_p, [c_int, c_int, c_int, c_char_p, c_char_p]),
    "harp_group_start": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p]),
    "harp_group_share": (c_int, [c_void_p, c_int64, c_char_p]),
    "harp_group_choose": (c_int, [c_void_p, c_int, c_int, c_int]),
    "harp_group_abort": (None, [c_void_p, c_char_p]),
    "harp_group_destroy": (None, [c_void_p]),
    "harp_post": (c_void_p, [c_void_p, POINTER(Call), c_char_p]),
    "harp_op_state": (c_int, [c_void_p]),
    "harp_op_wait": (c_int, [c_void_p, c_int64, c_int, c_char_p]),
    "harp_op_source": (c_int, [c_void_p]),
    "harp_op_free": (None, [c_void_p]),
    "harp_light_candidates": (
        c_size_t,
        [c_void_p, c_void_p, c_size_t, c_float, c_void_p, c_void_p, c_size_t],
    ),
}


@lru_cache(maxsize=None)
def library() -> Any:
    """The loaded library."""
    loaded = ctypes.CDLL(str(paths.collectives_library()))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def error_text() -> Any:
    """Memory for an error's sentence."""
    return ctypes.create_string_buffer(ERROR)


def said(error: Any) -> HarpError:
    return HarpError(error.value.decode(errors="replace"))


def open_plugin() -> None:
    """Initialises HARP in this process, once."""
    error = error_text()
    path = str(paths.nccl_plugin_path()).encode()
    if library().harp_collectives_open(path, error):
        raise said(error)


def views(tensors: Sequence[torch.Tensor]) -> Any:
    """An array of struct harp_view over the tensors' memory; None without tensors."""
    if not tensors:
        return None
    return (View * len(tensors))(
        *[View(tensor.data_ptr(), tensor.numel() * tensor.element_size()) for tensor in tensors]
    )


@lru_cache(maxsize=None)
def _reductions() -> dict[Any, int]:
    known = dist.ReduceOp
    return {getattr(known, name): number for number, name in enumerate(_REDUCTIONS)}


def reduction(op: Any) -> int:
    """enum harp_reduction of a torch ReduceOp: of PREMUL_SUM, the sum. Raises HarpError for others
    that the library lacks."""
    if op == getattr(dist.ReduceOp, "PREMUL_SUM", None):
        return SUM
    for known, number in _reductions().items():
        if op == known:
            return number
    raise HarpError(f"the backend harp has no reduction {op}: see docs/torch.md")


def premultiplier(op: Any) -> Optional[float]:
    """The factor of a PREMUL_SUM; None for other reductions. torch shows it only to pickle."""
    if op != getattr(dist.ReduceOp, "PREMUL_SUM", None):
        return None
    return float(op.__getstate__()[1])


def checked_tag(tag: int) -> int:
    """The tag of a send or receive. Raises HarpError if it does not fit the library's 31 bits."""
    if not 0 <= tag < 1 << 31:
        raise HarpError(f"tag {tag} is not between 0 and {(1 << 31) - 1}: use a smaller one")
    return tag


def post(group: int, call: Call) -> int:
    """Posts an operation of a harp_group. Returns the harp_op."""
    error = error_text()
    op: Optional[int] = library().harp_post(group, byref(call), error)
    if not op:
        raise said(error)
    return op
