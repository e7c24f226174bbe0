# SPDX-License-Identifier: Apache-2.0
"""`harp trace`: draws what a flow did before its link failed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Optional

import click

from harp.observe import trace as traces
from harp.observe.time_sequence import picture
from harp.observe.trace_sequence import Connection, NoFlow, choose, connections


def _describe(one: Connection) -> str:
    peer = f" to {one.peer}" if one.peer else ""
    return (
        f"flow {one.flow}{peer}: {one.sent:,} bytes sent in {len(one.seen.data):,} pieces, "
        f"{len(one.seen.again):,} sent again, {len(one.seen.lost):,} taken for lost"
    )


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--flow",
    type=int,
    metavar="PORT",
    help="The flow with this local port [the one that has sent the most].",
)
@click.option(
    "-w",
    "--write",
    "target",
    metavar="PICTURE",
    help="Where to write the picture; - is standard output [FILE's name with .svg, here].",
)
@click.option("--list", "wants_list", is_flag=True, help="List the flows, and draw nothing.")
def trace(file: Path, flow: Optional[int], target: Optional[str], wants_list: bool) -> None:
    """Draw a flow of a trace as a time-sequence graph, in SVG.

    FILE is a trace that a process wrote when its link failed. The graph shows sequence numbers
    against time: data, data sent again, what was taken for lost, acknowledgements, and the end of
    the peer's window. A web browser opens it.
    """
    try:
        found = traces.read(file)
        if wants_list:
            for one in connections(found):
                click.echo(_describe(one))
            return
        chosen = choose(found, flow)
    except OSError as failed:
        raise click.ClickException(f"{file}: {failed.strerror}") from None
    except (traces.TraceError, NoFlow) as wrong:
        raise click.ClickException(str(wrong)) from None
    title = f"{_describe(chosen)}   {found.host}: {found.reason}"
    svg = picture(chosen.seen, title, found.written_ns - chosen.began_ns)
    if target == "-":
        sys.stdout.write(svg)
        return
    path = Path(target) if target else Path(file.with_suffix(".svg").name)
    try:
        path.write_text(svg, encoding="utf-8")
    except OSError as failed:
        raise click.ClickException(
            f"cannot write {path}: {failed.strerror}; name another file with --write"
        ) from None
    click.echo(f"{path}: {_describe(chosen)}")
