# SPDX-License-Identifier: Apache-2.0
"""The time-sequence graph of one direction of a connection, as SVG: sequence numbers against time,
as in tcptrace and Wireshark (Stevens)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 1200, 700
LEFT, RIGHT, TOP, BOTTOM = 90, 20, 60, 50
MARK_WIDTH = 90  # a mark's word; a word that would cover the one before is left out
COLOURS = {
    "data": ("#1f3a5f", "sent"),
    "again": ("#d1242f", "sent again"),
    "lost": ("#e85aad", "taken for lost"),
    "ack": ("#2da44e", "acknowledged"),
    "sack": ("#8250df", "selectively acknowledged"),
    "edge": ("#bf8700", "end of the window"),
}

Point = tuple[int, int]  # time ns, offset in the stream
Span = tuple[int, int, int]  # time ns, first and end offset in the stream


@dataclass
class Sequences:
    """One direction of a connection, seen at its sender. Times are ns since a common beginning,
    offsets are bytes from the beginning of the stream. `marks` are moments with a word each."""

    data: list[Span] = field(default_factory=list)
    again: list[Span] = field(default_factory=list)
    lost: list[Span] = field(default_factory=list)
    ack: list[Point] = field(default_factory=list)
    sack: list[Span] = field(default_factory=list)
    edge: list[Point] = field(default_factory=list)
    marks: list[tuple[int, str]] = field(default_factory=list)

    @property
    def spans(self) -> list[Span]:
        return self.data + self.again


class Unwrapped:
    """Turns sequence numbers into stream offsets, over any number of wraps. first: the number with
    offset 0."""

    def __init__(self, first: int) -> None:
        self.first = self.last = first
        self.place = 0

    def __call__(self, number: int) -> int:
        step = (number - self.last + (1 << 31)) % (1 << 32) - (1 << 31)
        place = self.place + step
        if step > 0:
            self.last, self.place = number, place
        return place


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
    """Converts times and offsets to points of the picture. base: the lowest offset."""

    duration: int
    base: int
    size: int

    def x(self, time: float) -> float:
        return LEFT + time / max(self.duration, 1) * (WIDTH - LEFT - RIGHT)

    def y(self, place: float) -> float:
        return HEIGHT - BOTTOM - (place - self.base) / max(self.size, 1) * (HEIGHT - TOP - BOTTOM)

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
        milliseconds = max(self.duration, 1) / 1e6
        step = _step(milliseconds)
        for i in range(int(milliseconds / step) + 1):
            x = self.x(i * step * 1e6)
            lines.append(f'<path class="grid" d="M{x:.1f} {TOP}V{bottom}"/>')
            lines.append(
                f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{i * step:g}</text>'
            )
        step = _step(max(self.size, 1))
        for i in range(int(self.size / step) + 1):
            y = self.y(self.base + i * step)
            lines.append(f'<path class="grid" d="M{left} {y:.1f}H{right}"/>')
            lines.append(
                f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{i * step:,.0f}</text>'
            )
        lines.append(f'<text x="{right}" y="{HEIGHT - 12}" text-anchor="end">ms</text>')
        lines.append(f'<text x="{left - 6}" y="{TOP - 8}" text-anchor="end">bytes</text>')
        return lines

    def marks(self, marks: Iterable[tuple[int, str]]) -> list[str]:
        """Dashed lines with words above. Lines on the same point are drawn once for each word."""
        lines: dict[str, None] = {}
        free = 0.0  # where the next word may begin
        for time, word in marks:
            x = self.x(time)
            title = f"<title>{escape(word)}</title>"
            lines[f'<path class="mark" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}">{title}</path>'] = None
            if x >= free:
                lines[f'<text x="{x:.1f}" y="{TOP - 2}">{escape(word)}</text>'] = None
                free = x + MARK_WIDTH
        return list(lines)


def _legend(names: Iterable[str]) -> list[str]:
    lines = []
    for i, (colour, text) in enumerate(COLOURS[name] for name in names):
        x = LEFT + 10 + i * 180
        lines.append(f'<rect x="{x}" y="28" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{x + 18}" y="38">{text}</text>')
    return lines


def _style() -> str:
    rules = [f".{name}{{stroke:{colour};fill:none}}" for name, (colour, _) in COLOURS.items()]
    return "".join([
        "text{font:12px sans-serif}",
        ".grid{stroke:#d8dee4}",
        ".mark{stroke:#6e7781;stroke-dasharray:3}",
        ".again,.lost{stroke-width:2}",
        *rules,
    ])  # fmt: skip


def picture(seen: Sequences, title: str, end: int = 0) -> str:
    """The picture as SVG. `seen` has data. end: the least time that the picture covers, ns."""
    low = min(first for _, first, _ in seen.spans)
    high = max(last for _, _, last in seen.spans)
    times = [time for time, *_ in [*seen.spans, *seen.ack]] + [time for time, _ in seen.marks]
    canvas = _Canvas(max(*times, end), low, high - low)
    # The window usually ends far beyond the sent data; that part is not worth drawing.
    edge = [(time, min(max(place, low), high)) for time, place in seen.edge]
    ack = [(time, max(place, low)) for time, place in seen.ack]
    drawn = {
        "edge": canvas.stairs(edge),
        "ack": canvas.stairs(ack),
        "sack": canvas.spans(seen.sack),
        "data": canvas.spans(seen.data),
        "lost": canvas.spans(seen.lost),
        "again": canvas.spans(seen.again),
    }
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}">',
        f"<style>{_style()}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="18">{escape(title)}</text>',
        *_legend(name for name in COLOURS if drawn[name]),
        *canvas.axes(),
        *canvas.marks(seen.marks),
        *(f'<path class="{name}" d="{path}"/>' for name, path in drawn.items() if path),
        "</svg>",
        "",
    ])  # fmt: skip
