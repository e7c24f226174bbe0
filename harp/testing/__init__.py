# SPDX-License-Identifier: Apache-2.0
"""Packet-level tests of HARP's TCP/IP stack, in virtual time.

`Stack` is a stack, `Dialogue` a scripted peer for tests that read like a packet trace, `Wire` a
network between two stacks. `harp.testing.plugin` provides them as pytest fixtures.

The compiled modules are in this folder once installed. In a checkout they are in the build folder,
$HARP_BUILD_DIR or build/.
"""

from __future__ import annotations

import os
from pathlib import Path

_checkout = Path(__file__).resolve().parents[2]
if (_checkout / "meson.build").is_file():
    _build = Path(os.environ.get("HARP_BUILD_DIR") or _checkout / "build").resolve()
    __path__.append(str(_build / "harp" / "testing"))
