# SPDX-License-Identifier: Apache-2.0
"""The paths of the built files: in the package once installed, in the build folder in a checkout.

Every function raises FileNotFoundError with a way to get a missing file.
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
        raise FileNotFoundError(f"{PACKAGE} is an installed package, without a build folder")
    return Path(os.environ.get("HARP_BUILD_DIR") or PACKAGE.parent / "build").resolve()


def _find(built: str, installed: str) -> Path:
    if in_checkout():
        path = build_dir() / built
        remedy = f"build it with: meson setup {build_dir()} && meson compile -C {build_dir()}"
    else:
        path = PACKAGE / installed
        remedy = "reinstall the package: pip install --force-reinstall harp-nccl"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; {remedy}")
    return path


def nccl_plugin_path() -> Path:
    """HARP's plugin; NCCL_NET_PLUGIN may hold this path."""
    return _find("plugin/libnccl-net.so", "libnccl-net-harp.so")


def kernel_plugin_path() -> Path:
    """The reference plugin over kernel TCP."""
    return _find("harp/bench/kernel/libnccl-net-kernel.so", "libnccl-net-kernel.so")


def perf_program() -> Path:
    """The C program that `harp perf` runs."""
    return _find("harp/bench/harp-perf", "harp-perf")


def collectives_library() -> Path:
    """The C library of harp.torch."""
    return _find("harp/collectives/libharp-collectives.so", "libharp-collectives.so")


def nc_program() -> Path:
    """HARP's netcat."""
    return _find("harp/nc/harp-nc", "harp-nc")


def agent_opener() -> Path:
    """The privileged part of `harp agent`."""
    return _find("harp/agent/harp-agent-open", "harp-agent-open")
