# SPDX-License-Identifier: Apache-2.0
"""Where the built files are: beside the package once installed, in the build folder in a checkout.

Every function raises FileNotFoundError with the way to get the file.
"""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def in_checkout() -> bool:
    """Whether this package lies in a source checkout and not among installed packages."""
    return (PACKAGE.parent / "meson.build").is_file()


def build_dir() -> Path:
    """The checkout's build folder: $HARP_BUILD_DIR or build/. It need not exist."""
    if not in_checkout():
        raise FileNotFoundError(f"{PACKAGE} is installed: there is no build folder beside it")
    return Path(os.environ.get("HARP_BUILD_DIR") or PACKAGE.parent / "build").resolve()


def _find(built: str, installed: str) -> Path:
    if in_checkout():
        path = build_dir() / built
        remedy = f"build it with: meson setup {build_dir()} && meson compile -C {build_dir()}"
    else:
        path = PACKAGE / installed
        remedy = "install the package anew: pip install --force-reinstall harp-nccl"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; {remedy}")
    return path


def nccl_plugin_path() -> Path:
    """HARP's plugin, as NCCL_NET_PLUGIN may name it."""
    return _find("plugin/libnccl-net.so", "libnccl-net-harp.so")


def kernel_plugin_path() -> Path:
    """The plain kernel-TCP plugin that HARP is measured against."""
    return _find("harp/bench/kernel/libnccl-net-kernel.so", "libnccl-net-kernel.so")


def perf_program() -> Path:
    """The loop of `harp perf`."""
    return _find("harp/bench/harp-perf", "harp-perf")


def nc_program() -> Path:
    """HARP's netcat."""
    return _find("harp/nc/harp-nc", "harp-nc")
