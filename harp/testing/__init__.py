# SPDX-License-Identifier: Apache-2.0
"""Packet-level tests of HARP's TCP/IP stack, in virtual time.

`Stack` is a stack, `Dialogue` a scripted peer whose tests read like a packet
trace, `Wire` a network between two stacks; `harp.testing.plugin` offers them
as pytest fixtures.

The compiled module lies beside this file once installed; in a checkout it lies
in the build folder, $HARP_BUILD_DIR or build/.
"""

from __future__ import annotations

import os
from pathlib import Path

_checkout = Path(__file__).resolve().parents[2]
if (_checkout / "meson.build").is_file():
    _build = Path(os.environ.get("HARP_BUILD_DIR") or _checkout / "build").resolve()
    __path__.append(str(_build / "harp" / "testing"))
