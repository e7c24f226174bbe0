# SPDX-License-Identifier: Apache-2.0
"""`harprun CMD...`: runs a job with HARP, for every release of NCCL."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Optional

import click

from harp import loader, nccl_plugin_path
from harp.cli.main import HELP, version_option
from harp.cli.stop import before_exec

_WHEEL_NAME = "libnccl-net-harp.so"  # NCCL_NET_PLUGIN=harp selects this name


def _link_folders(plugin: Path) -> list[Path]:
    """The folders for a link to this plugin, the best first. Each installation has its own folder,
    named by a hash of the plugin's path."""
    folders = []
    try:
        cache = os.environ.get("XDG_CACHE_HOME")
        folders.append(Path(cache) if cache else Path.home() / ".cache")
    except RuntimeError:
        pass  # this user has no home folder
    if os.environ.get("XDG_RUNTIME_DIR"):
        folders.append(Path(os.environ["XDG_RUNTIME_DIR"]))
    name = hashlib.sha256(os.fsencode(plugin)).hexdigest()[:16]
    return [folder / "harp" / "lib" / name for folder in folders]


def _link(folder: Path, plugin: Path) -> None:
    """Makes the link in the folder. Other ranks may make it at the same time. Raises OSError."""
    link = folder / loader.NAME
    folder.mkdir(parents=True, exist_ok=True)
    try:
        link.symlink_to(plugin)
    except FileExistsError:
        if os.readlink(link) != str(plugin):
            raise


def library_folder(plugin: Path) -> Optional[Path]:
    """A folder in which the plugin has the name libnccl-net.so, which every release of NCCL looks
    for. None if no folder is writable."""
    if plugin.name == loader.NAME:
        return plugin.parent
    for folder in _link_folders(plugin):
        try:
            _link(folder, plugin)
        except OSError:
            continue
        return folder
    return None


def environment(plugin: Path, insist: bool) -> dict[str, str]:
    """The job's environment: this process's, changed so that NCCL finds the plugin first."""
    result = dict(os.environ)
    folder = library_folder(plugin)
    if folder is not None:
        # NCCL's releases interpret this variable differently. Without it, all look for the name
        # libnccl-net.so.
        result.pop("NCCL_NET_PLUGIN", None)
    else:
        click.echo(
            "harprun: no folder is writable for a link to the plugin. NCCL before 2.11 will not "
            "find the plugin. Set XDG_CACHE_HOME.",
            err=True,
        )
        result["NCCL_NET_PLUGIN"] = "harp" if plugin.name == _WHEEL_NAME else str(plugin)
    folders = [str(folder or plugin.parent), result.get("LD_LIBRARY_PATH", "")]
    result["LD_LIBRARY_PATH"] = ":".join(folder for folder in folders if folder)
    if insist:
        result["NCCL_NET"] = "HARP"
    return result


@click.command(
    context_settings={**HELP, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
@version_option
@click.option(
    "--plugin",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="Another build of the plugin.",
)
@click.option(
    "--insist",
    is_flag=True,
    help="Set NCCL_NET=HARP: if HARP cannot be used, the job fails instead of using sockets.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(plugin: Optional[str], insist: bool, command: tuple[str, ...]) -> None:
    """Run a job with HARP.

    COMMAND replaces this process (exec) and finds the plugin first:
    mpirun ... harprun python3 train.py
    """
    try:
        chosen = Path(plugin) if plugin else nccl_plugin_path()
        variables = environment(chosen, insist)
        before_exec()
        os.execvpe(command[0], list(command), variables)
    except FileNotFoundError as missing:
        if missing.filename is not None:
            raise click.ClickException(f"{command[0]}: no such command") from missing
        raise click.ClickException(str(missing)) from missing
    except OSError as failure:
        raise click.ClickException(f"{command[0]}: {failure.strerror}") from failure
