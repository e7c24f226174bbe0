# SPDX-License-Identifier: Apache-2.0
"""The names by which Horovod chooses compression."""

from __future__ import annotations

from enum import Enum


class Compression(Enum):
    """How values are sent. The variables LIGHT_TOPK_... add top-k for gradients."""

    none = "none"
    fp16 = "fp16"
