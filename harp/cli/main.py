# SPDX-License-Identifier: Apache-2.0
"""The command line: `harp COMMAND`, `harp-setup` and `harprun`.

Exit status: 0 success, 1 a failure or a fault found, 2 wrong usage.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Any, Optional

import click

# The module of each command, imported only on use: some need the compiled module, which
# `harp build` makes.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "build": ("harp.build", "build", "Compile the C part of a checkout."),
    "setup": ("harp.setup.command", "setup", "Prepare this host, or undo that."),
    "doctor": ("harp.cli.doctor", "doctor", "Find the faults that keep HARP from working here."),
    "env": ("harp.cli.env", "env", "Show the values in force and their sources."),
    "enable": ("harp.cli.toggle", "enable", "Let NCCL find the plugin at a path."),
    "disable": ("harp.cli.toggle", "disable", "Hide the plugin at a path from NCCL."),
    "check": ("harp.cli.check", "check", "Test a job's hosts and network before the job."),
    "perf": ("harp.cli.perf", "perf", "Measure a plugin between ranks."),
    "nc": ("harp.cli.netcat", "nc", "HARP's TCP as a netcat."),
    "stat": ("harp.cli.stat", "stat", "Counters and flows of running processes."),
    "top": ("harp.cli.top", "top", "Rates of running processes, live."),
    "trace": ("harp.cli.trace", "trace", "Draw what a flow did before its link failed."),
    "exporter": ("harp.cli.exporter", "exporter", "Metrics of this node for Prometheus."),
    "agent": ("harp.cli.agent", "agent", "Open sockets of this node for jobs without privileges."),
    "capture": ("harp.cli.capture", "capture", "Record HARP's frames to a pcapng file."),
}


class _LazyGroup(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> Optional[click.Command]:
        if name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[name]
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ImportError as missing:
            if "_tables" not in str(missing):
                raise
            raise click.ClickException(
                f"the compiled module is missing ({missing}); build it with: harp build"
            ) from None
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in COMMANDS.items()])


# -h as well as --help, for these programs and their subcommands.
HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


# How this CPU computes checksums, by the names of harp/stack/ip/checksum_vector.c.
_SUMS = {
    "avx512": "by AVX-512",
    "avx2": "by AVX2",
    "neon": "by NEON",
    "words": "without vector instructions (no AVX2)",
}


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from harp import _tables

        facts = _tables.build_facts()
        click.echo(f"harp {facts['release']}")
        click.echo(f"commit {facts['commit']}")
        click.echo(f"DPDK {facts['dpdk'] or 'none: this build has no dpdk: devices'}")
        click.echo(f"checksums {_SUMS[facts['sums']]}")
        click.echo(f"devices {' '.join(facts['devices'])}")
        context.exit()


version_option = click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show release, commit and parts of this build, and exit.",
)


@click.group(cls=_LazyGroup, context_settings=HELP)
@version_option
def harp() -> None:
    """A user-space TCP/IP stack as an NCCL net plugin."""


def _run(command: click.Command, name: str, arguments: Optional[list[str]] = None) -> Any:
    """Runs a command as this program. A file name that is no text is printed as it is. An error
    that no command expects, such as a full disk behind the output, ends it with one line."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="surrogateescape")
    try:
        return command.main(arguments, prog_name=name, **HELP)
    except OSError as failed:
        where = f"{failed.filename}: " if failed.filename is not None else ""
        click.echo(f"Error: {where}{failed.strerror or failed}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the rest of the output would fail again
        raise SystemExit(1) from None


def main(arguments: Optional[list[str]] = None) -> Any:
    """The command `harp`."""
    return _run(harp, "harp", arguments)


def setup_main() -> Any:
    """The command `harp-setup`: harp setup."""
    from harp.setup.command import setup

    return _run(setup, "harp-setup")


def run_main() -> Any:
    """The command `harprun`."""
    from harp.cli.run import run

    return _run(run, "harprun")
