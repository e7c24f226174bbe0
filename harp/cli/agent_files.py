# SPDX-License-Identifier: Apache-2.0
"""`harp agent file`: prints the files that run the agent as a service."""

from __future__ import annotations

import sys
from pathlib import Path

import click

FOLDER = Path(__file__).parents[1] / "agent" / "files"
NAMES = (
    "harp-agent.service",
    "harp-agent.socket",
    "daemonset.yaml",
    "pod.yaml",
    "egress.nft",
    "seccomp.json",
)


def text(name: str) -> str:
    """A file, with the command of this installation in the place of @HARP@."""
    return (FOLDER / name).read_text().replace("@HARP@", f"{sys.executable} -m harp")


@click.command()
@click.argument("name", type=click.Choice(NAMES))
def file(name: str) -> None:
    """Print a file that runs the agent as a service, or that restricts what jobs may send."""
    click.echo(text(name), nl=False)
