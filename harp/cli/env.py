# SPDX-License-Identifier: Apache-2.0
"""`harp env`: shows the values in force and the source of each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from harp import _tables
from harp.setup.plan import conf_dir, conf_files


def allowed(key: dict[str, Any]) -> str:
    """The allowed values of a key, with their range."""
    if key["max"] is None:
        return str(key["allowed"])
    return f"{key['allowed']} from {key['min']} to {key['max']}"


def variables() -> dict[str, str]:
    """The environment variables that are not keys of ztcp*.conf, with their meaning."""
    return {one["name"]: one["doc"] for one in _tables.variables()}


def unknown_variables() -> dict[str, str]:
    """The environment variables that begin with HARP_ and that HARP does not read. Each has a
    question that suggests the right name, or ""."""
    found = _tables.unknown_variables()
    return {name: f"; do you mean {meant}?" if meant else "" for name, meant in found}


def ignored_variables() -> list[str]:
    """The environment variables with the name of a key that only the file may set."""
    names = (f"HARP_{key['name'].upper()}" for key in _tables.keys() if key["file_only"])
    return [name for name in names if name in os.environ]


Values = dict[str, tuple[str, str]]  # a file's values and their sources


@dataclass(frozen=True)
class File:
    """A ztcp*.conf: its values with their sources, or its error ("" for none)."""

    path: Path
    values: Values
    error: str


def read(path: Path) -> File:
    """Reads a ztcp*.conf. Puts an error into the result instead of raising it."""
    try:
        return File(path, _tables.load(path), "")
    except _tables.ConfigError as wrong:
        return File(path, {}, str(wrong))


def _show_defaults(as_json: bool) -> None:
    keys = _tables.keys()
    if as_json:
        click.echo(json.dumps({"schema": "harp.keys/1", "keys": keys}, indent=1))
        return
    for key in keys:
        click.echo(f"{key['name']}  [{key['default']}]")
        click.echo(f"    {key['doc']}")
        click.echo(f"    {allowed(key)}")
        if not key["file_only"]:
            click.echo(f"    HARP_{key['name'].upper()} in the environment overrides the file.")
    click.echo("\nOnly in the environment:")
    for name, meaning in variables().items():
        click.echo(f"    {name:<16}{meaning}")


def _show_files(files: list[File]) -> None:
    defaults = {key["name"]: key["default"] for key in _tables.keys()}
    for file in files:
        click.echo(f"{file.path}")
        if file.error:
            click.echo(f"    error: {file.error}")
        for key, (value, source) in file.values.items():
            click.echo(f"    {key:<12}{value or '(' + defaults[key] + ')':<40}  {source}")
    for name in variables():
        if name in os.environ:
            click.echo(f"{name} = {os.environ[name]}")
    for name in ignored_variables():
        click.echo(f"{name} = {os.environ[name]}    ignored: only the file may set this key")
    for name, question in unknown_variables().items():
        click.echo(f"{name} = {os.environ.get(name, '?')}    HARP does not read it{question}")


def _as_json(files: list[File]) -> str:
    return json.dumps(
        {
            "schema": "harp.env/1",
            "files": [
                {
                    "path": str(file.path),
                    "error": file.error or None,
                    "values": {
                        key: {"value": value or None, "source": source}
                        for key, (value, source) in file.values.items()
                    },
                }
                for file in files
            ],
            "environment": {name: os.environ[name] for name in variables() if name in os.environ},
            "ignored": ignored_variables(),
            "unknown": {name: meant or None for name, meant in _tables.unknown_variables()},
        },
        indent=1,
    )


# -- the devices that NCCL sees


def devices_as_json(devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The devices with their index. A guid is text, since JSON's readers round large numbers."""
    return [{"index": i, **one, "guid": f"{one['guid']:016x}"} for i, one in enumerate(devices)]


def _table(devices: list[dict[str, Any]]) -> Iterator[str]:
    """The lines of a table, with a row for each device."""
    rows = [("device", "name", "NIC", "Mbit/s", "guid", "PCI path", "files")]
    for one in devices_as_json(devices):
        nic = "all" if one["name"] == "HARP" else one["identity"]
        files = ", ".join(Path(path).name for path in one["files"])
        speed, place = str(one["speed_mbps"]), one["pci_path"] or "none"
        rows.append((str(one["index"]), one["name"], nic, speed, one["guid"], place, files))
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()


def _show_devices(as_json: bool) -> None:
    """Raises Exit(1) if HARP would decline."""
    folder = conf_dir()
    devices: list[dict[str, Any]] = []
    error = ""
    try:
        devices = _tables.devices(folder)
    except _tables.ConfigError as wrong:
        error = str(wrong)
    if as_json:
        report = {
            "schema": "harp.devices/1",
            "folder": str(folder),
            "error": error or None,
            "devices": devices_as_json(devices),
        }
        click.echo(json.dumps(report, indent=1))
    else:
        click.echo(f"error: {error}" if error else "\n".join(_table(devices)))
    if error:
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--defaults", is_flag=True, help="Print the table of keys instead.")
@click.option("--devices", is_flag=True, help="Print the devices that NCCL sees instead.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def env(paths: tuple[Path, ...], defaults: bool, devices: bool, as_json: bool) -> None:
    """Show the values in force and the source of each.

    PATHS are ztcp*.conf; default: all of the configuration folder. Exit 1 if one
    has an error, or there is none.

    --devices: what every process of this host tells NCCL, in NCCL's order.
    """
    if devices and (paths or defaults):
        raise click.UsageError("--devices takes no files and no --defaults: it reads the folder")
    if defaults:
        _show_defaults(as_json)
        return
    if devices:
        _show_devices(as_json)
        return
    chosen = list(paths) or conf_files(conf_dir())
    files = [read(path) for path in chosen]
    if as_json:
        click.echo(_as_json(files))
    else:
        _show_files(files)
        if not files:
            click.echo(f"no ztcp*.conf in {conf_dir()}; run harp setup")
    if not files or any(file.error for file in files):
        raise click.exceptions.Exit(1)
