# SPDX-License-Identifier: Apache-2.0
"""Draws the time-sequence graph of a flow in a capture, as SVG: the data sent and retransmitted,
the acknowledgements, the SACK blocks, and the end of the peer's window over time.

    python3 -m harp.testing.time_sequence run.pcapng picture.svg
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import click

from harp.observe.time_sequence import Sequences, Unwrapped, picture
from harp.testing.capture_reader import CaptureError, TracedSegment, read_tcp
from harp.testing.frames import ACK, SYN

Flow = tuple[str, int, str, int]  # source and destination, addresses and ports


class NoFlow(ValueError):
    """The capture has no such flow, or none with payload."""


@dataclass
class Trace(Sequences):
    """One direction of a connection. Times are ns since its first segment."""

    flow: Flow = ("", 0, "", 0)


def flow_of(segment: TracedSegment) -> Flow:
    return segment.src, segment.sport, segment.dst, segment.dport


def largest_flow(segments: Iterable[TracedSegment]) -> Flow:
    """The direction with the most payload. Raises NoFlow if there is no payload."""
    bytes_of: Counter[Flow] = Counter()
    for segment in segments:
        bytes_of[flow_of(segment)] += segment.payload
    if not bytes_of or not max(bytes_of.values()):
        raise NoFlow("no segment of the capture carries payload")
    return bytes_of.most_common(1)[0][0]


def _at_sender(segments: Sequence[TracedSegment], flow: Flow) -> list[TracedSegment]:
    """Both directions of a flow, on the sender's interface if the capture has several."""
    back = (*flow[2:], *flow[:2])
    both = [one for one in segments if flow_of(one) in (flow, back)]
    places = {one.interface for one in both if flow_of(one) == flow and one.sent}
    return [one for one in both if not places or one.interface in places]


def follow(segments: Sequence[TracedSegment], flow: Optional[Flow] = None) -> Trace:
    """The trace of one direction of a connection; default: the one with the most payload. Raises
    NoFlow."""
    flow = flow or largest_flow(segments)
    both = _at_sender(segments, flow)
    forth = [one for one in both if flow_of(one) == flow]
    if not forth:
        raise NoFlow(f"the capture has no flow {flow[0]}:{flow[1]} to {flow[2]}:{flow[3]}")
    first = forth[0]
    place = Unwrapped((first.seq + bool(first.flags & SYN)) % (1 << 32))
    scales = {flow_of(one): one.scale for one in both if one.flags & SYN}
    scaled = len(scales) == 2 and None not in scales.values()
    found = Trace(flow=flow)
    highest = 0
    for one in both:
        time = one.time - both[0].time
        if flow_of(one) == flow:
            if one.payload:
                start = place(one.seq)
                kind = found.again if start < highest else found.data
                kind.append((time, start, start + one.payload))
                highest = max(highest, place((one.seq + one.payload) % (1 << 32)))
        elif one.flags & ACK:
            shift = scales[flow_of(one)] or 0 if scaled and not one.flags & SYN else 0
            acked = place(one.ack)
            found.ack.append((time, acked))
            found.edge.append((time, acked + (one.window << shift)))
            found.sack += [(time, place(left), place(right)) for left, right in one.sacks]
    return found


def draw(segments: Sequence[TracedSegment], flow: Optional[Flow] = None, title: str = "") -> str:
    """The picture of a flow as SVG; default: the flow with the most payload. Raises NoFlow."""
    seen = follow(segments, flow)
    return picture(
        seen, f"{seen.flow[0]}:{seen.flow[1]} to {seen.flow[2]}:{seen.flow[3]}   {title}"
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("capture", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("target", metavar="PICTURE", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--port", type=click.IntRange(1, 65535), help="Draw the largest flow with this port.")
def main(capture: Path, target: Path, port: Optional[int]) -> None:
    """Draws the time-sequence picture of a capture's largest flow (pcapng to SVG)."""
    try:
        segments = read_tcp(capture)
        if port:
            segments = [one for one in segments if port in (one.sport, one.dport)]
        target.write_text(draw(segments, title=capture.name))
    except (CaptureError, NoFlow, OSError) as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
