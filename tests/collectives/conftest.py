# SPDX-License-Identifier: Apache-2.0
"""harp.torch on the hosts of a lab."""

from __future__ import annotations

from tools.hosts.lab_fixtures import lab, make_lab

__all__ = ["lab", "make_lab"]
