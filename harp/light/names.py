# SPDX-License-Identifier: Apache-2.0
"""Collectives of torch.distributed that newer releases call by other names.

The old names warn there at each call.
"""

from __future__ import annotations

import torch.distributed as dist

all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
