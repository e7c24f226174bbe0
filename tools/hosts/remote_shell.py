# SPDX-License-Identifier: Apache-2.0
"""A script that takes the place of ssh between the hosts of a lab."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from tools.hosts.ranks import Site


def write_remote_shell(path: Path, sites: Mapping[str, Site]) -> Path:
    """Writes the script. Usage: PATH ADDRESS WORD..., as of ssh without options. It starts the
    command with the configuration of the site at the address, and fails as ssh for another
    address. Temporary files are in a folder of the site, as if each host had a /tmp of its own."""
    lines = ["#!/bin/sh", "address=$1; shift", 'case "$address" in']
    for address, site in sites.items():
        temporary = site.folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        settings = [
            f"HARP_CONF_DIR={site.folder}",
            f"HARP_RUN_DIR={site.run_folder}",
            f"TMPDIR={temporary}",
        ]
        command = shlex.join(site.command(["env", *settings, "sh", "-c"]))
        lines.append(f'{address}) exec {command} "$*";;')
    refusal = 'echo "ssh: connect to host $address port 22: No route to host" >&2; exit 255'
    path.write_text("\n".join([*lines, "esac", refusal, ""]))
    path.chmod(0o755)
    return path
