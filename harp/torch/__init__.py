# SPDX-License-Identifier: Apache-2.0
"""A torch.distributed backend for CPU tensors over HARP.

    import torch.distributed as dist
    import harp.torch

    dist.init_process_group("harp")

The import registers the backend "harp" with torch, and opens nothing.
"""

from __future__ import annotations

try:
    import torch.distributed as dist
except ImportError as missing:
    raise ImportError(
        f"harp.torch needs PyTorch ({missing}); install it with: pip install 'harp-nccl[torch]'"
    ) from None

from harp.torch.group import HarpProcessGroup, create

__all__ = ["HarpProcessGroup"]

if not hasattr(dist.Backend, "HARP"):
    dist.Backend.register_backend("harp", create, devices=["cpu"])
