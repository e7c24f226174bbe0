# SPDX-License-Identifier: Apache-2.0
"""`harp agent status`: what the agent of this node has granted, and what it has counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from harp.agent import metrics
from harp.agent.query import AgentRefused, ask, socket_path


def _lines(state: dict[str, Any], path: Path) -> Iterator[str]:
    first, last, block = state["ports"]
    yield f"agent pid {state['pid']}, protocol {state['version']}, {path}"
    yield f"  serves: {', '.join(state['allow']) or 'root only'}"
    yield f"  devices: {', '.join(state['devices']) or 'all'}"
    yield f"  ports {first}-{last}, {block} for each device of a process"
    counts = " ".join(f"{name}:{count}" for name, count in sorted(state["counts"].items()))
    yield f"  clients:{state['connections']} granted now:{state['granted']} {counts}"
    for grant in state["grants"]:
        low, high = grant["ports"]
        where = f"ports {low}-{high}" if low else "all ports"
        yield (
            f"  pid {grant['pid']} uid {grant['uid']}: {grant['interface']}, address "
            f"{grant['address']}, {where}"
        )
    if len(state["grants"]) < state["granted"]:
        yield f"  and {state['granted'] - len(state['grants'])} more"


@click.command()
@click.option("--json", "wants_json", is_flag=True, help="Report as JSON.")
@click.option(
    "--prometheus", "wants_prometheus", is_flag=True, help="Report in Prometheus' text format."
)
@click.pass_context
def status(context: click.Context, wants_json: bool, wants_prometheus: bool) -> None:
    """Show what the agent has granted to which process, and what it has counted."""
    assert context.parent
    path: Path = context.parent.params["socket_path"]
    if context.parent.get_parameter_source("socket_path") == click.core.ParameterSource.DEFAULT:
        path = socket_path()  # the agent of a job's environment
    if wants_json and wants_prometheus:
        raise click.UsageError("--json and --prometheus: give one")
    try:
        state = ask(path, "status")
    except OSError as failed:
        # An agent that refuses the question runs, and its own words name the remedy.
        silent = not isinstance(failed, AgentRefused)
        hint = "; is harp agent running on this node?" if silent else ""
        raise click.ClickException(f"{path}: {failed.strerror or failed}{hint}") from None
    if wants_json:
        click.echo(json.dumps(state, indent=2))
        return
    for line in metrics.lines(state) if wants_prometheus else _lines(state, path):
        click.echo(line)
