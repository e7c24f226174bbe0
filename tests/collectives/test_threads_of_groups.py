# SPDX-License-Identifier: Apache-2.0
"""Several threads use a group at once, see group_check.c. The thread sanitizer runs this, too."""

from __future__ import annotations

from pathlib import Path

from built_programs import run

from harp import paths
from tools.hosts.ranks import remove_wire, wire_path, wire_site


def test_threads_share_a_group_over_harp(tmp_path: Path) -> None:
    wire = wire_path()  # nobody takes its other end, because all ranks share one address
    environment = wire_site(tmp_path, wire, 1).all_environment()
    try:
        run("group-check", paths.nccl_plugin_path(), environment=environment)
    finally:
        remove_wire(wire)


def test_threads_share_a_group_over_kernel_tcp() -> None:
    environment = {"NCCL_SOCKET_IFNAME": "lo"}
    run("group-check", paths.kernel_plugin_path(), environment=environment)
