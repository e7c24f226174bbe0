# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of tools."""

from tools.hosts.lab_fixtures import lab, make_lab

__all__ = ["lab", "make_lab"]
