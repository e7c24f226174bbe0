# SPDX-License-Identifier: Apache-2.0
"""Draws the time-sequence graph of a flow in a capture, as SVG: the data sent and retransmitted,
the acknowledgements, the SACK blocks, and the end of the peer's window over time.

    python3 -m harp.testing.time_sequence run.pcapng picture.svg
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Optional

import click

from harp.testing.capture_reader import CaptureError, TracedSegment, read_tcp
from harp.testing.frames import ACK, SYN

WIDTH, HEIGHT = 1200, 700
LEFT, RIGHT, TOP, BOTTOM = 90, 20, 60, 50
COLOURS = {
    "data": ("#1f3a5f", "sent"),
    "again": ("#d1242f", "sent again"),
    "ack": ("#2da44e", "acknowledged"),
    "sack": ("#8250df", "selectively acknowledged"),
    "edge": ("#bf8700", "end of the window"),
}

Flow = tuple[str, int, str, int]  # source and destination, addresses and ports
Point = tuple[int, int]  # time ns, offset in the stream
Span = tuple[int, int, int]  # time ns, first and end offset in the stream


class NoFlow(ValueError):
    """The capture has no such flow, or none with payload."""


@dataclass
class Trace:
    """One direction of a connection, seen at its sender. Times are ns since the first segment,
    offsets are bytes from the beginning of the stream."""

    flow: Flow
    data: list[Span] = field(default_factory=list)
    again: list[Span] = field(default_factory=list)
    ack: list[Point] = field(default_factory=list)
    sack: list[Span] = field(default_factory=list)
    edge: list[Point] = field(default_factory=list)


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


class _Unwrapped:
    """Turns sequence numbers into stream offsets, over any number of wraps."""

    def __init__(self, first: int) -> None:
        self.first = self.last = first
        self.place = 0

    def __call__(self, number: int) -> int:
        step = (number - self.last + (1 << 31)) % (1 << 32) - (1 << 31)
        place = self.place + step
        if step > 0:
            self.last, self.place = number, place
        return place


def follow(segments: Sequence[TracedSegment], flow: Optional[Flow] = None) -> Trace:
    """The trace of one direction of a connection; default: the one with the most payload. Raises
    NoFlow."""
    flow = flow or largest_flow(segments)
    both = _at_sender(segments, flow)
    forth = [one for one in both if flow_of(one) == flow]
    if not forth:
        raise NoFlow(f"the capture has no flow {flow[0]}:{flow[1]} to {flow[2]}:{flow[3]}")
    first = forth[0]
    place = _Unwrapped((first.seq + bool(first.flags & SYN)) % (1 << 32))
    scales = {flow_of(one): one.scale for one in both if one.flags & SYN}
    scaled = len(scales) == 2 and None not in scales.values()
    found = Trace(flow)
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


# -- drawing


def _step(span: float) -> float:
    """A round distance between marks, for five to ten marks."""
    power = 1.0
    while power * 10 <= span:
        power *= 10
    while power > span:
        power /= 10
    return next(power * k for k in (0.1, 0.2, 0.5, 1.0) if span / (power * k) <= 10)


@dataclass
class _Canvas:
    """Converts times and offsets to points of the picture."""

    duration: int
    size: int

    def x(self, time: float) -> float:
        return LEFT + time / max(self.duration, 1) * (WIDTH - LEFT - RIGHT)

    def y(self, place: float) -> float:
        return HEIGHT - BOTTOM - place / max(self.size, 1) * (HEIGHT - TOP - BOTTOM)

    def spans(self, spans: Iterable[Span]) -> str:
        """Vertical strokes. Strokes on the same points are drawn once."""
        drawn: dict[str, None] = {}
        for time, low, high in spans:
            top = min(self.y(high), self.y(low) - 0.6)
            drawn[f"M{self.x(time):.1f} {self.y(low):.1f}V{top:.1f}"] = None
        return "".join(drawn)

    def stairs(self, points: Sequence[Point]) -> str:
        """A staircase: the line keeps its height until the next point."""
        parts: dict[str, None] = {}
        for i, (time, place) in enumerate(points):
            start = f"M{self.x(time):.1f} {self.y(place):.1f}" if i == 0 else f"H{self.x(time):.1f}"
            parts[f"{start}V{self.y(place):.1f}"] = None
        return "".join(parts)

    def axes(self) -> list[str]:
        left, right, bottom = LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM
        lines = []
        step = _step(self.duration / 1e6)
        for i in range(int(self.duration / 1e6 / step) + 1):
            x = self.x(i * step * 1e6)
            lines.append(f'<path class="grid" d="M{x:.1f} {TOP}V{bottom}"/>')
            lines.append(
                f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{i * step:g}</text>'
            )
        step = _step(self.size)
        for i in range(int(self.size / step) + 1):
            y = self.y(i * step)
            lines.append(f'<path class="grid" d="M{left} {y:.1f}H{right}"/>')
            lines.append(
                f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{i * step:,.0f}</text>'
            )
        lines.append(f'<text x="{right}" y="{HEIGHT - 12}" text-anchor="end">ms</text>')
        lines.append(f'<text x="{left - 6}" y="{TOP - 8}" text-anchor="end">bytes</text>')
        return lines


def _legend() -> list[str]:
    lines = []
    for i, (colour, text) in enumerate(COLOURS.values()):
        x = LEFT + 10 + i * 190
        lines.append(f'<rect x="{x}" y="36" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{x + 18}" y="46">{text}</text>')
    return lines


def _style() -> str:
    rules = [f".{name}{{stroke:{colour};fill:none}}" for name, (colour, _) in COLOURS.items()]
    return "".join(
        ["text{font:12px sans-serif}", ".grid{stroke:#d8dee4}", ".again{stroke-width:2}", *rules]
    )


def draw(segments: Sequence[TracedSegment], flow: Optional[Flow] = None, title: str = "") -> str:
    """The picture of a flow as SVG; default: the flow with the most payload. Raises NoFlow."""
    seen = follow(segments, flow)
    spans = seen.data + seen.again
    times = [time for time, *_ in [*spans, *seen.ack]]
    canvas = _Canvas(max(times), max(high for _, _, high in spans))
    # The window usually ends far beyond the sent data; that part is not worth drawing.
    edge = [(time, min(place, canvas.size)) for time, place in seen.edge]
    heading = f"{seen.flow[0]}:{seen.flow[1]} to {seen.flow[2]}:{seen.flow[3]}   {title}"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}">',
        f"<style>{_style()}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22">{escape(heading)}</text>',
        *_legend(),
        *canvas.axes(),
        f'<path class="edge" d="{canvas.stairs(edge)}"/>',
        f'<path class="ack" d="{canvas.stairs(seen.ack)}"/>',
        f'<path class="sack" d="{canvas.spans(seen.sack)}"/>',
        f'<path class="data" d="{canvas.spans(seen.data)}"/>',
        f'<path class="again" d="{canvas.spans(seen.again)}"/>',
        "</svg>",
        "",
    ])  # fmt: skip


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("capture", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("picture", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--port", type=click.IntRange(1, 65535), help="Draw the largest flow with this port.")
def main(capture: Path, picture: Path, port: Optional[int]) -> None:
    """Draws the time-sequence picture of a capture's largest flow (pcapng to SVG)."""
    try:
        segments = read_tcp(capture)
        if port:
            segments = [one for one in segments if port in (one.sport, one.dport)]
        picture.write_text(draw(segments, title=capture.name))
    except (CaptureError, NoFlow, OSError) as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
