# SPDX-License-Identifier: Apache-2.0
"""The folders in which the dynamic loader, and so NCCL, looks for the plugin."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

NAME = "libnccl-net.so"
HIDDEN_NAME = "bak.libnccl-net.so"

# The folders that every loader searches, with or without a cache.
_DEFAULT = (
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
)

# Texts in plugins. _MARK is in every plugin of HARP's and in no other. The others are error
# messages of builds without DPDK or XDP (ethdev_absent.c, xdp_absent.c).
_MARK = b"HARP_CONF_DIR"
_NO_DPDK = b"this HARP was built without DPDK"
_NO_XDP = b"this HARP was built without XDP"


def _cached() -> list[str]:
    """The folders of the loader's cache (ldconfig)."""
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        try:
            listed = subprocess.run([program, "-p"], capture_output=True, text=True, timeout=30)
        except OSError:
            continue
        return [
            os.path.dirname(line.rpartition("=> ")[2])
            for line in listed.stdout.splitlines()
            if "=> " in line
        ]
    return []


def folders() -> list[Path]:
    """LD_LIBRARY_PATH, then the system's folders, in the loader's order."""
    named = [part for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    ordered = dict.fromkeys([*named, *_cached(), *_DEFAULT])
    return [Path(folder) for folder in ordered]


def find_all(name: str) -> Iterator[Path]:
    """The files of that name in the loader's folders, in its order."""
    return (folder / name for folder in folders() if (folder / name).is_file())


def find(name: str = NAME) -> Optional[Path]:
    """The first file of that name in the loader's folders."""
    return next(find_all(name), None)


def _holds(path: Path, mark: bytes) -> bool:
    try:
        return mark in path.read_bytes()
    except OSError:
        return False


def is_harp(path: Path) -> bool:
    """Whether a library is HARP's plugin."""
    return _holds(path, _MARK)


def holds_harp(content: bytes) -> bool:
    """Whether these are the bytes of HARP's plugin."""
    return _MARK in content


def lacks_dpdk(path: Path) -> bool:
    """Whether a plugin was built without DPDK."""
    return _holds(path, _NO_DPDK)


def lacks_xdp(path: Path) -> bool:
    """Whether a plugin was built without XDP."""
    return _holds(path, _NO_XDP)
