# SPDX-License-Identifier: Apache-2.0
"""`harp nc`: a netcat over HARP's stack, for any TCP peer. The program is in C."""

from __future__ import annotations

import os

import click

from harp import paths
from harp.cli.stop import before_exec


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def nc(arguments: tuple[str, ...]) -> None:
    """A netcat over HARP's TCP; see harp nc --help."""
    try:
        program = paths.nc_program()
    except FileNotFoundError as missing:
        raise click.ClickException(str(missing)) from missing
    # exec: the program receives the signals itself and sets the exit status.
    before_exec()
    os.execv(program, [str(program), *arguments])
