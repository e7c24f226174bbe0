# SPDX-License-Identifier: Apache-2.0
"""The build backend of pyproject.toml: meson-python, with five additions.

It names everything that the host lacks before it builds. It builds all devices unless an option
leaves some out, and a wheel without DPDK has the local version "nodpdk". Its wheels are tagged for
the oldest Python of the limited API, because meson-python tags them for the Python that builds.
They hold man pages and completions, made from the declarations of the built commands.

A meson cross file among the options makes a wheel for another machine. Its commands do not run
here, so its pages come from this machine's build in $HARP_BUILD_DIR or build/.
"""

from __future__ import annotations

import argparse
import configparser
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Optional

import build_needs
import completions
import mesonpy
from mesonpy import build_sdist, get_requires_for_build_sdist
from wheel.wheelfile import WheelFile

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
ROOT = Path(__file__).resolve().parents[2]

Settings = Optional[dict[str, Any]]


def _args(settings: Settings) -> list[str]:
    found = (settings or {}).get("setup-args", [])
    words = [found] if isinstance(found, str) else found
    return [option for word in words for option in shlex.split(word)]


def _is_disabled(part: str, args: list[str]) -> bool:
    return f"-D{part}=disabled" in args


def _other_machine(args: list[str]) -> Optional[str]:
    """The machine that the cross files name. None: the build is for this machine."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--cross-file", action="append", default=[])
    cross = configparser.RawConfigParser()
    cross.read(parser.parse_known_args(args)[0].cross_file)
    return cross.get("host_machine", "cpu_family", fallback="").strip("'\"") or None


def _prepared(settings: Settings) -> dict[str, Any]:
    """The settings with every part enabled that they do not name. Exits if the host lacks
    something."""
    args = _args(settings)
    machine = _other_machine(args)
    if machine:
        os.environ["_PYTHON_HOST_PLATFORM"] = f"linux-{machine}"  # meson-python makes a tag of it
    else:  # meson looks for the parts of another machine
        parts = {part: not _is_disabled(part, args) for part in PARTS}
        lacking = list(build_needs.missing(**parts))
        if lacking:
            print(build_needs.complaint(lacking), file=sys.stderr)
            raise SystemExit(1)
    named = [part for part in PARTS if any(word.startswith(f"-D{part}=") for word in args)]
    args += [f"-D{part}=enabled" for part in PARTS if part not in named]
    os.environ["HARP_LOCAL_VERSION"] = "+nodpdk" if _is_disabled("dpdk", args) else ""
    return {**(settings or {}), "setup-args": args}


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return mesonpy.get_requires_for_build_wheel(_prepared(config_settings))


get_requires_for_build_editable = get_requires_for_build_wheel


def _add_shared_files(file: Path, runs_here: bool = True) -> None:
    """Adds man pages and completions of its commands to a wheel. pip installs them into share/."""
    with tempfile.TemporaryDirectory() as name, WheelFile(file) as old:
        folder = Path(name)
        files = [info for info in old.infolist() if not info.is_dir()]
        for info in files:
            (folder / old.extract(info, folder)).chmod(info.external_attr >> 16)
        # pip's own folder on PYTHONPATH has what the build requires.
        package = folder if runs_here else ROOT
        paths = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
        subprocess.run(
            [sys.executable, Path(__file__).with_name("man.py"), folder / "man1",
             file.name.split("-")[1]], env={**os.environ, "PYTHONPATH": paths}, check=True,
        )  # fmt: skip
        shared = dict(completions.files())
        shared.update((f"man/man1/{page.name}", page.read_text())
                      for page in sorted((folder / "man1").iterdir()))  # fmt: skip
        new = folder / file.name
        with WheelFile(new, "w") as wheel:
            for info in files:
                if info.filename != old.record_path:
                    wheel.writestr(info, old.read(info))
            for place, text in shared.items():
                wheel.writestr(f"{old.parsed_filename['namever']}.data/data/share/{place}", text)
        shutil.move(new, file)


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None
) -> str:
    """Returns the name of the wheel's file in wheel_directory."""
    settings = _prepared(config_settings)
    name = mesonpy.build_wheel(wheel_directory, settings, metadata_directory)
    runs_here = _other_machine(_args(settings)) is None
    _add_shared_files(Path(wheel_directory) / name, runs_here)
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
