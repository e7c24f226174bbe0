# SPDX-License-Identifier: Apache-2.0
"""The versions of NCCL's net interface that the plugin has, as in harp/bench/netapi.h."""

from __future__ import annotations

APIS = range(4, 13)
