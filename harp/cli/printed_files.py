# SPDX-License-Identifier: Apache-2.0
"""`harp agent file` and `harp exporter file`: print files that come with HARP."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import click

_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class PrintedFiles:
    """Files of one folder."""

    folder: Path
    names: tuple[str, ...]

    def text(self, name: str) -> str:
        """A file, with the command of this installation in the place of @HARP@."""
        return (self.folder / name).read_text().replace("@HARP@", f"{sys.executable} -m harp")

    def command(self, summary: str) -> click.Command:
        """A command that prints one of them."""

        @click.command("file", help=summary)
        @click.argument("name", type=click.Choice(self.names))
        def file(name: str) -> None:
            click.echo(self.text(name), nl=False)

        return file


OF_AGENT = PrintedFiles(
    _PACKAGE / "agent" / "files",
    (
        "harp-agent.service",
        "harp-agent.socket",
        "daemonset.yaml",
        "pod.yaml",
        "egress.nft",
        "seccomp.json",
    ),
)
OF_EXPORTER = PrintedFiles(
    _PACKAGE / "observe" / "files",
    ("harp-exporter.service", "scrape.yaml", "alerts.yaml", "dashboard.json"),
)
