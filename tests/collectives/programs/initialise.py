# SPDX-License-Identifier: Apache-2.0
"""Only initialises the backend. Exit: 0, or 1 with the reason."""

from __future__ import annotations

import sys

import torch.distributed as dist

import harp.torch

try:
    dist.init_process_group("harp")
except RuntimeError as error:
    assert "harp.torch" in sys.modules and harp.torch.HarpProcessGroup
    print(error, flush=True)
    sys.exit(1)
dist.destroy_process_group()
