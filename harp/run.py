# SPDX-License-Identifier: Apache-2.0
"""`harprun CMD...`: a job with HARP on, whatever NCCL it brings."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from harp import loader, nccl_plugin_path


def _link_folder() -> Path:
    """A folder of the user's for the link. Raises OSError."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "harp" / "lib"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if os.access(cache, os.W_OK):
            return cache
    except (OSError, RuntimeError):
        pass
    return Path(tempfile.mkdtemp(prefix="harp-lib-"))


def library_folder(plugin: Path) -> Path:
    """A folder in which the plugin is called libnccl-net.so: the one name that every
    release of NCCL looks for."""
    if plugin.name == loader.NAME:
        return plugin.parent
    folder = _link_folder()
    link = folder / loader.NAME
    if not (link.is_symlink() and os.readlink(link) == str(plugin)):
        new = folder / f".{loader.NAME}.{os.getpid()}"
        new.symlink_to(plugin)
        os.replace(new, link)
    return folder


def environment(plugin: Path, insist: bool) -> dict[str, str]:
    """The job's environment: this process's, in which NCCL finds the plugin first."""
    result = dict(os.environ)
    folders = [str(library_folder(plugin)), result.get("LD_LIBRARY_PATH", "")]
    result["LD_LIBRARY_PATH"] = ":".join(folder for folder in folders if folder)
    # Releases disagree on what this may hold, and without it all look for the name.
    result.pop("NCCL_NET_PLUGIN", None)
    if insist:
        result["NCCL_NET"] = "HARP"
    return result


@click.command(context_settings={"ignore_unknown_options": True,
                                 "allow_interspersed_args": False})
@click.option("--plugin", type=click.Path(exists=True, dir_okay=False, resolve_path=True),
              help="Another build of the plugin.")
@click.option("--insist", is_flag=True,
              help="NCCL_NET=HARP: the job fails where HARP cannot be used, instead of going on "
                   "over sockets.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(plugin: "str | None", insist: bool, command: tuple[str, ...]) -> None:
    """Run a job with HARP on.

    COMMAND is run in this process's place, with the plugin where NCCL looks
    first: mpirun ... harprun python3 train.py
    """
    try:
        chosen = Path(plugin) if plugin else nccl_plugin_path()
        os.execvpe(command[0], list(command), environment(chosen, insist))
    except FileNotFoundError as missing:
        if missing.filename is not None:
            raise click.ClickException(f"{command[0]}: no such command") from missing
        raise click.ClickException(str(missing)) from missing
    except OSError as failure:
        raise click.ClickException(f"{command[0]}: {failure.strerror}") from failure
