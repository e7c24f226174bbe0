# SPDX-License-Identifier: Apache-2.0
"""What a build of HARP needs from the host, and the Debian packages that have it.

Uses the standard library alone, because it runs before anything is built.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Optional


def _run(command: list[str], text: str = "") -> Optional[str]:
    """What a command prints. None: it failed, or is not there."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def _compiler() -> Optional[list[str]]:
    args = shlex.split(os.environ.get("CC", "")) or ["cc"]
    return args if shutil.which(args[0]) else None


def _has_header(name: str) -> bool:
    compiler = _compiler()
    if compiler is None:
        return any(Path("/usr/include").glob(name)) or any(Path("/usr/include").glob(f"*/{name}"))
    return _run([*compiler, "-E", "-"], f"#include <{name}>\n") is not None


def _has_library(module: str, archive: str) -> bool:
    """Whether pkg-config knows a module, and its static archive is there. Without pkg-config:
    whether the archive lies in a folder of the system."""
    if shutil.which(os.environ.get("PKG_CONFIG", "pkg-config")) is None:
        return any(Path("/usr").glob(f"lib*/{archive}")) or any(
            Path("/usr/lib").glob(f"*/{archive}")
        )
    folder = _run(["pkg-config", "--variable=libdir", module])
    return folder is not None and (Path(folder.strip()) / archive).is_file()


def missing(dpdk: bool = True, xdp: bool = True) -> Iterator[tuple[str, str]]:
    """What the host lacks: (what it is, its Debian package). dpdk, xdp: whether the build has these
    devices."""
    if _compiler() is None:
        yield "a C compiler", "gcc"
    if not _has_header("stdio.h"):
        yield "the C library's headers", "libc6-dev"
    if shutil.which(os.environ.get("PKG_CONFIG", "pkg-config")) is None:
        yield "pkg-config", "pkg-config"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        yield "Python's headers", "python3-dev"
    if not _has_library("libsodium", "libsodium.a"):
        yield "libsodium with its static library", "libsodium-dev"
    if dpdk and not _has_library("libdpdk-libs", "librte_eal.a"):
        yield "DPDK 22.11 with its static libraries", "libdpdk-dev"
    if xdp and not (shutil.which("clang-14") or shutil.which("clang")):
        yield "clang, for the XDP program", "clang"


def complaint(lacking: list[tuple[str, str]]) -> str:
    """The error for what is missing, with the remedy."""
    lines = ["HARP cannot be built here. These are missing:"]
    lines += [f"  {what}" for what, _ in lacking]
    packages = [package for _, package in lacking]
    lines.append(f"On Debian and Ubuntu: apt-get install {' '.join(packages)}")
    for option in ("dpdk", "xdp"):
        if {"dpdk": "libdpdk-dev", "xdp": "clang"}[option] in packages:
            lines.append(
                f"Or leave {option}: devices out: "
                f"pip install --config-settings=setup-args=-D{option}=disabled ."
            )
    return "\n".join(lines)
