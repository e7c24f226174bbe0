# SPDX-License-Identifier: Apache-2.0
"""The variables of LightCC and those of Horovod that it honours, with LightCC's defaults."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable


class SettingError(ValueError):
    """A variable has a value that cannot be used. The text names the variable."""


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("0 or 1")
    return text == "1"


def _whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise ValueError(f"a whole number of at least {least}")
        return int(text)

    return parse


def _decimal(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _ratio(text: str) -> float:
    if not 0 < _decimal(text) <= 1:
        raise ValueError("a number above 0 and at most 1")
    return float(text)


def _milliseconds(text: str) -> float:
    if not 0 <= _decimal(text) <= 60000:
        raise ValueError("milliseconds from 0 to 60000")
    return float(text)


def _variable(name: str, default: Any, parse: Callable[[str], Any]) -> Any:
    return dataclasses.field(default=default, metadata={"name": name, "parse": parse})


@dataclass(frozen=True)
class Settings:
    """How gradients are reduced. Sizes are bytes of one buffer that is reduced at once."""

    two_d: bool = _variable("LIGHT_2D_ALLREDUCE", False, _switch)
    intra_size: int = _variable("LIGHT_INTRA_SIZE", 8, _whole(1))
    two_d_most: int = _variable("LIGHT_HIERARCHICAL_THRESHOLD", 1073741824, _whole(0))
    topk: bool = _variable("LIGHT_TOPK_ALLREDUCE", False, _switch)
    topk_ratio: float = _variable("LIGHT_TOPK_RATIO", 0.01, _ratio)
    topk_least: int = _variable("LIGHT_TOPK_THRESHOLD", 1048576, _whole(0))
    topk_fp16: bool = _variable("LIGHT_TOPK_FP16", False, _switch)
    # Buckets are fixed, as those of DDP, so that communication overlaps the backward pass. The
    # default is therefore DDP's, and not Horovod's.
    fusion_bytes: int = _variable("HOROVOD_FUSION_THRESHOLD", 26214400, _whole(0))
    cycle_ms: float = _variable("HOROVOD_CYCLE_TIME", 0.0, _milliseconds)


def variables() -> dict[str, str]:
    """The field of each variable."""
    return {field.metadata["name"]: field.name for field in dataclasses.fields(Settings)}


def read(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings of an environment. An unset or empty variable has its default.

    Raises SettingError.
    """
    values = {}
    for field in dataclasses.fields(Settings):
        name = field.metadata["name"]
        text = environment.get(name, "").strip()
        if not text:
            continue
        try:
            values[field.name] = field.metadata["parse"](text)
        except ValueError as wanted:
            raise SettingError(
                f"{name}={text} is not {wanted}; correct it, or unset it for the default "
                f"{field.default:g}"
            ) from None
    return Settings(**values)
