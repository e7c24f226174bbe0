# SPDX-License-Identifier: Apache-2.0
"""HARP: a user-space TCP/IP stack as an NCCL net plugin.

The compiled module is in this folder once installed. In a checkout it is in the build folder,
$HARP_BUILD_DIR or build/.
"""

from __future__ import annotations

import os
from pathlib import Path

_checkout = Path(__file__).resolve().parents[1]
if (_checkout / "meson.build").is_file():
    _build = Path(os.environ.get("HARP_BUILD_DIR") or _checkout / "build").resolve()
    __path__.append(str(_build / "harp"))


def nccl_plugin_path() -> Path:
    """The plugin's path, for NCCL_NET_PLUGIN. Raises FileNotFoundError with the way to build
    it."""
    from harp.paths import nccl_plugin_path as path

    return Path(path())
