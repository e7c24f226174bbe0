# SPDX-License-Identifier: Apache-2.0
"""The command tools/lab: hosts for experiments by hand."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, Optional, Tuple

import click

from tools.hosts import lab as labs
from tools.hosts.relay import RelayError, RelaySpec


def _folders(folder: Path, host: labs.Host) -> Dict[str, str]:
    """The variables of a host's folders. A namespace shares the machine's files, so each host needs
    folders apart from the machine's."""
    home = folder / f"host{host.index}"
    return {"HARP_CONF_DIR": str(home / "config"), "HARP_RUN_DIR": str(home / "run")}


def _write_program(folder: Path, host: labs.Host) -> None:
    """Writes the program that runs a command in a host, by default a shell."""
    variables = _folders(folder, host)
    Path(variables["HARP_RUN_DIR"]).mkdir(parents=True)
    exports = "".join(f"export {name}={shlex.quote(text)}\n" for name, text in variables.items())
    _write_script(
        folder / "bin" / f"h{host.index}",
        f'{exports}[ $# -gt 0 ] || set -- "${{SHELL:-sh}}"\n'
        f'exec {shlex.join(host.command([]))} "$@"\n',
    )


def _write_harp(folder: Path) -> None:
    """Writes the program harp of this checkout, because a checkout need not be installed."""
    root = Path(__file__).resolve().parents[2]
    _write_script(
        folder / "bin" / "harp",
        f'PYTHONPATH={shlex.quote(str(root))} exec {shlex.quote(sys.executable)} -m harp "$@"\n',
    )


def _write_script(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Make hosts from network namespaces on a virtual wire. Needs root."""


@main.command()
@click.option("--hosts", default=2, show_default=True, help="Number of hosts, 2 to 64.")
@click.option(
    "--wire",
    default="veth-1500",
    show_default=True,
    help="veth-MTU[-nooff][-bridge]; nooff: TSO, GSO, GRO and checksum offloads off.",
)
@click.option(
    "--relay",
    default=None,
    metavar="SPEC",
    help="Faults between two hosts: drop=P, drop_burst=N, duplicate=P, reorder=P/N, "
    "corrupt=P, delay_us=N, rate_mbps=N, queue=N, seed=N, separated by commas.",
)
@click.option("--threaded", is_flag=True, help="Use threaded NAPI on the hosts' devices.")
@click.argument("command", nargs=-1)
def up(
    hosts: int, wire: str, relay: Optional[str], threaded: bool, command: Tuple[str, ...]
) -> None:
    """Make hosts, run COMMAND (default: a shell) in the first one, remove the hosts.

    COMMAND finds the programs h0, h1 and so on, which run a command in that host,
    and the program harp of this checkout.
    Each host has its own folders for HARP's configuration and statistics. In the
    environment of COMMAND, LAB_HOSTS has the namespaces of all hosts, and
    LAB_ADDRESSES their addresses in the same order.
    """
    try:
        spec = None if relay is None else RelaySpec.parse(relay)
        with (
            tempfile.TemporaryDirectory(prefix=labs.FOLDER_PREFIX) as name,
            labs.Lab(hosts, wire, spec, threaded) as lab,
        ):
            lab.own_folder(Path(name))
            _write_harp(Path(name))
            for host in lab.hosts:
                _write_program(Path(name), host)
                click.echo(f"host {host.index}: {host.address}, h{host.index} COMMAND")
            env = {
                **os.environ,
                **_folders(Path(name), lab.hosts[0]),
                "PATH": f"{name}/bin:{os.environ.get('PATH', os.defpath)}",
                "LAB_HOSTS": " ".join(host.namespace for host in lab.hosts),
                "LAB_ADDRESSES": " ".join(host.address for host in lab.hosts),
            }
            args = command or (os.environ.get("SHELL", "/bin/sh"),)
            status = _run_in_foreground(lab.hosts[0].command(args), env)
        if spec:
            click.echo(f"relay: {lab.relay_counts}")
    except (labs.LabError, RelayError) as error:
        raise click.ClickException(str(error)) from None
    sys.exit(status)


def _run_in_foreground(args: "list[str]", env: "dict[str, str]") -> int:
    """Runs a program in the foreground. Ctrl-C ends the program, not this process. Returns the
    status that a shell would report."""
    before = signal.signal(signal.SIGINT, lambda *_: None)  # the program would inherit SIG_IGN
    try:
        with subprocess.Popen(args, env=env, restore_signals=True) as process:
            try:
                status = process.wait()
                return status if status >= 0 else 128 - status
            except BaseException:
                process.terminate()
                raise
    finally:
        signal.signal(signal.SIGINT, before)


@main.command("list")
def list_labs() -> None:
    """List the existing hosts."""
    for lab_id, names in labs.labs().items():
        click.echo(f"{lab_id}: {' '.join(names)}")


@main.command()
def clean() -> None:
    """Remove the hosts and folders of dead owners."""
    try:
        removed = labs.clean()
    except labs.LabError as error:
        raise click.ClickException(str(error)) from None
    for name in removed:
        click.echo(f"removed {name}")


if __name__ == "__main__":
    main(prog_name="tools/lab")
