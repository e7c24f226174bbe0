# SPDX-License-Identifier: Apache-2.0
"""What tests of harp.torch share."""

from __future__ import annotations

from pathlib import Path

PROGRAMS = Path(__file__).resolve().parent / "programs"
