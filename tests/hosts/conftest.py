# SPDX-License-Identifier: Apache-2.0
"""Two hosts on a wire, made once for each test file; and HARP's stack beside Linux's TCP."""

from interop_ends import case, wire

from tools.hosts.lab_fixtures import lab, make_lab

__all__ = ["case", "lab", "make_lab", "wire"]
