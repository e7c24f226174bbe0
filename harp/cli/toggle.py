# SPDX-License-Identifier: Apache-2.0
"""`harp enable` and `harp disable`: one rename, which jobs that start later see."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

import click

from harp import loader


def _folder(path: Optional[str]) -> Path:
    """The folder that is meant: of the plugin under either name. Raises ClickException."""
    if path is not None:
        given = Path(path)
        if given.is_dir():
            return given
        if given.name not in (loader.NAME, loader.HIDDEN_NAME):
            raise click.UsageError(
                f"{given}: give a folder, or a file called {loader.NAME} or {loader.HIDDEN_NAME}"
            )
        return given.parent
    others = []
    for name in (loader.NAME, loader.HIDDEN_NAME):
        for found in loader.find_all(name):
            if loader.is_harp(found):
                return found.parent
            others.append(str(found))
    there = f"; {' and '.join(others)} is not HARP's" if others else ""
    raise click.ClickException(
        f"no {loader.NAME} of HARP's and no {loader.HIDDEN_NAME} where the "
        f"loader looks{there}; name the folder"
    )


def _rename(folder: Path, source: str, target: str, state: str) -> None:
    here, there = folder / source, folder / target
    if not here.is_file():
        if there.is_file():
            click.echo(f"{there}: {state} already")
            return
        raise click.ClickException(
            f"{folder} holds neither {source} nor {target}; name the folder where the plugin lies"
        )
    if not loader.is_harp(here):
        raise click.ClickException(
            f"{here} is not HARP's but another plugin under that name, and stays as it is"
        )
    if there.exists():
        raise click.ClickException(
            f"{there} is there beside {source}; remove the one that is not wanted"
        )
    try:
        os.rename(here, there)
    except OSError as failure:
        raise click.ClickException(f"{failure}; run as the folder's owner") from failure
    click.echo(f"{there}: {state}")


@click.command()
@click.argument("path", required=False)
def enable(path: Optional[str]) -> None:
    """Give the plugin back the name that NCCL looks for.

    PATH is the plugin or its folder; by default HARP's first one where the loader
    looks. Another vendor's stays as it is. Renames bak.libnccl-net.so to libnccl-net.so.
    """
    _rename(_folder(path), loader.HIDDEN_NAME, loader.NAME, "enabled")


@click.command()
@click.argument("path", required=False)
def disable(path: Optional[str]) -> None:
    """Take the plugin out of NCCL's sight; jobs use sockets then.

    PATH is the plugin or its folder; by default HARP's first one where the loader
    looks. Another vendor's stays as it is. Renames libnccl-net.so to bak.libnccl-net.so.
    """
    _rename(_folder(path), loader.NAME, loader.HIDDEN_NAME, "disabled")
