# SPDX-License-Identifier: Apache-2.0
"""`harp exporter file`: prints the files that make the metrics useful."""

from __future__ import annotations

import sys
from pathlib import Path

import click

FOLDER = Path(__file__).parents[1] / "observe" / "files"
NAMES = ("harp-exporter.service", "scrape.yaml", "alerts.yaml", "dashboard.json")


def text(name: str) -> str:
    """A file, with the command of this installation in the place of @HARP@."""
    return (FOLDER / name).read_text().replace("@HARP@", f"{sys.executable} -m harp")


@click.command()
@click.argument("name", type=click.Choice(NAMES))
def file(name: str) -> None:
    """Print a unit of systemd, Prometheus' scrape configuration and alert rules, or a dashboard
    for Grafana."""
    click.echo(text(name), nl=False)
