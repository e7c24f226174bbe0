# SPDX-License-Identifier: Apache-2.0
"""Two hosts on a wire, made once for each test file."""

from tools.hosts.lab_fixtures import lab

__all__ = ["lab"]
