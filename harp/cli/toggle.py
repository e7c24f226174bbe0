# SPDX-License-Identifier: Apache-2.0
"""`harp enable` and `harp disable`: rename the plugin. Only jobs that start later notice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

import click

from harp import loader


def _folder(path: Optional[str]) -> Path:
    """The folder of the plugin, under either name. Raises ClickException."""
    if path is not None:
        given = Path(path)
        if given.is_dir():
            return given
        if given.name not in (loader.NAME, loader.HIDDEN_NAME):
            raise click.UsageError(
                f"{given}: give a folder, or a file named {loader.NAME} or {loader.HIDDEN_NAME}"
            )
        return given.parent
    others = []
    for name in (loader.NAME, loader.HIDDEN_NAME):
        for found in loader.find_all(name):
            if loader.is_harp(found):
                return found.parent
            others.append(str(found))
    there = f"; not HARP's: {', '.join(others)}" if others else ""
    raise click.ClickException(
        f"the loader's folders hold no {loader.NAME} or {loader.HIDDEN_NAME} of HARP's{there}; "
        "give the folder. For a plugin that only harprun finds, such as a wheel's, leave harprun "
        "out of the launch line"
    )


def _rename(folder: Path, source: str, target: str, state: str) -> None:
    here, there = folder / source, folder / target
    if not here.is_file():
        if there.is_file():
            click.echo(f"{there}: {state} already")
            return
        raise click.ClickException(
            f"{folder} holds neither {source} nor {target}; give the folder of the plugin"
        )
    if not loader.is_harp(here):
        raise click.ClickException(f"{here} is another vendor's plugin; it was not renamed")
    if there.exists():
        raise click.ClickException(f"{folder} holds both {source} and {target}; remove one of them")
    try:
        os.rename(here, there)
    except OSError as failure:
        raise click.ClickException(f"{failure}; run as the folder's owner") from failure
    click.echo(f"{there}: {state}")


@click.command()
@click.argument("path", required=False)
def enable(path: Optional[str]) -> None:
    """Give the plugin back the name that NCCL looks for.

    PATH is the plugin or its folder. Default: HARP's first plugin in the loader's
    folders. Renames bak.libnccl-net.so to libnccl-net.so, but never another vendor's
    plugin.
    """
    _rename(_folder(path), loader.HIDDEN_NAME, loader.NAME, "enabled")


@click.command()
@click.argument("path", required=False)
def disable(path: Optional[str]) -> None:
    """Hide the plugin from NCCL; jobs use sockets then.

    PATH is the plugin or its folder. Default: HARP's first plugin in the loader's
    folders. Renames libnccl-net.so to bak.libnccl-net.so, but never another vendor's
    plugin.
    """
    _rename(_folder(path), loader.NAME, loader.HIDDEN_NAME, "disabled")
