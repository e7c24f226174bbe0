# SPDX-License-Identifier: Apache-2.0
"""`harp build`: compiles the C part of a checkout."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import click

from harp import paths


def meson() -> list[str]:
    """The command line of meson: this Python's, else the system's. Raises ClickException with the
    way to install it."""
    if importlib.util.find_spec("mesonbuild"):
        return [sys.executable, "-m", "mesonbuild.mesonmain"]
    program = shutil.which("meson")
    if program is None:
        raise click.ClickException("meson is missing; pip install meson ninja cython")
    return [program]


def _run(command: list[str]) -> None:
    click.echo(" ".join(command), err=True)
    if subprocess.run(command).returncode:
        raise click.ClickException(f"{' '.join(command)} failed; see its output above")


def _options(buildtype: str, sanitize: bool) -> list[str]:
    """Options of meson, the same for a new folder and for one that exists."""
    sanitizers = "address,undefined" if sanitize else "none"
    return [
        f"-Dbuildtype={buildtype}",
        f"-Db_sanitize={sanitizers}",
        f"-Db_lundef={'false' if sanitize else 'true'}",
    ]


def _are_given(*names: str) -> bool:
    """Whether the command line has one of these options."""
    context = click.get_current_context()
    default = click.core.ParameterSource.DEFAULT
    return any(context.get_parameter_source(name) != default for name in names)


@click.command()
@click.option(
    "--buildtype",
    type=click.Choice(["release", "debugoptimized", "debug"]),
    default="release",
    show_default=True,
    help="How the compiler optimizes.",
)
@click.option("--sanitize", is_flag=True, help="Add the address and undefined sanitizers.")
def build(buildtype: str, sanitize: bool) -> None:
    """Compile the C part of a checkout, in $HARP_BUILD_DIR or build/.

    Needs a C compiler, meson, ninja and cython. An installed package has nothing to
    build.
    """
    try:
        folder = paths.build_dir()
    except FileNotFoundError as installed:
        raise click.ClickException(f"{installed}; build in a checkout") from installed
    source = Path(paths.PACKAGE).parent
    if not (folder / "build.ninja").is_file():
        _run([*meson(), "setup", *_options(buildtype, sanitize), str(folder), str(source)])
    elif _are_given("buildtype", "sanitize"):
        _run([*meson(), "configure", *_options(buildtype, sanitize), str(folder)])
    _run([*meson(), "compile", "-C", str(folder)])
    click.echo(f"built in {folder}")
