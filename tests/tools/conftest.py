# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tools' tests."""

from tools.hosts.lab_fixtures import lab, make_lab

__all__ = ["lab", "make_lab"]
