# SPDX-License-Identifier: Apache-2.0
"""LightCC: less communication in data-parallel training, over any backend of torch.distributed.

    import harp.light

    model.register_comm_hook(harp.light.State(optimizer=optimizer), harp.light.hook)

`harp.light.torch` is the same behind Horovod's interface. The variables LIGHT_... choose what is
done (settings.py).
"""

from __future__ import annotations

try:
    import torch.distributed  # noqa: F401
except ImportError as missing:
    raise ImportError(
        f"harp.light needs PyTorch ({missing}); install it with: pip install 'harp-nccl[torch]'"
    ) from None

from harp.light.ddp import State, hook
from harp.light.settings import SettingError, Settings, read

__all__ = ["SettingError", "Settings", "State", "hook", "read"]
