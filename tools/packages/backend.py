# SPDX-License-Identifier: Apache-2.0
"""The build backend of pyproject.toml: meson-python, with three additions.

It names everything that the host lacks before it builds. It builds all devices unless an option
leaves some out, and a wheel without DPDK has the local version "nodpdk". Its wheels are tagged for
the oldest Python of the limited API, because meson-python tags them for the Python that builds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Optional

import build_needs
import mesonpy
from mesonpy import build_sdist, get_requires_for_build_sdist

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

OLDEST = "cp39"  # the limited_api of harp/meson.build
PARTS = ("dpdk", "xdp")

Settings = Optional[dict[str, Any]]


def _words(settings: Settings) -> list[str]:
    found = (settings or {}).get("setup-args", [])
    return [found] if isinstance(found, str) else list(found)


def _is_disabled(part: str, words: list[str]) -> bool:
    return f"-D{part}=disabled" in words


def _prepared(settings: Settings) -> dict[str, Any]:
    """The settings with every part enabled that they do not name. Exits if the host lacks
    something."""
    words = _words(settings)
    lacking = list(build_needs.missing(**{part: not _is_disabled(part, words) for part in PARTS}))
    if lacking:
        print(build_needs.complaint(lacking), file=sys.stderr)
        raise SystemExit(1)
    named = [part for part in PARTS if any(word.startswith(f"-D{part}=") for word in words)]
    words += [f"-D{part}=enabled" for part in PARTS if part not in named]
    os.environ["HARP_LOCAL_VERSION"] = "+nodpdk" if _is_disabled("dpdk", words) else ""
    return {**(settings or {}), "setup-args": words}


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return mesonpy.get_requires_for_build_wheel(_prepared(config_settings))


get_requires_for_build_editable = get_requires_for_build_wheel


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None
) -> str:
    """Returns the name of the wheel's file in wheel_directory."""
    settings = _prepared(config_settings)
    name = mesonpy.build_wheel(wheel_directory, settings, metadata_directory)
    done = subprocess.run(
        [sys.executable, "-m", "wheel", "tags", "--remove", "--python-tag", OLDEST,
         Path(wheel_directory) / name],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()[-1].strip()


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None
) -> str:
    return mesonpy.build_editable(wheel_directory, _prepared(config_settings), metadata_directory)
