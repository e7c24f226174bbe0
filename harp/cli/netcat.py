# SPDX-License-Identifier: Apache-2.0
"""`harp nc`: HARP's stack as a netcat, with any TCP peer. The program is in C."""

from __future__ import annotations

import os

import click

from harp import paths


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def nc(arguments: tuple[str, ...]) -> None:
    """HARP's TCP as a netcat; its own --help tells more."""
    try:
        program = paths.nc_program()
    except FileNotFoundError as missing:
        raise click.ClickException(str(missing)) from missing
    # The program takes this process's place: signals and status are its own.
    os.execv(program, [str(program), *arguments])
