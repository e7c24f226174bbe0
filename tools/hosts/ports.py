# SPDX-License-Identifier: Apache-2.0
"""Port numbers of the programs that a tool or a test starts. Only the standard library."""

from __future__ import annotations

import secrets


def random_port() -> int:
    """A TCP port below those that Linux gives out itself. Another program may have it."""
    return 20000 + secrets.randbelow(10000)
