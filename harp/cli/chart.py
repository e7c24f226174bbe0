# SPDX-License-Identifier: Apache-2.0
"""Line charts as SVG, for pages without scripts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

Points = Sequence[tuple[float, float]]

COLOURS = ("#1a66b3", "#c33", "#383", "#a60", "#639")
_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 30, 45


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis with this base. `text` writes a value."""

    title: str
    base: int
    text: Callable[[float], str]

    def powers(self, values: Sequence[float]) -> range:
        """The exponents from the power below all values to the one above."""
        low = math.floor(math.log(min(values), self.base))
        high = math.ceil(math.log(max(values), self.base))
        return range(low, max(high, low + 1) + 1)


def _share(value: float, axis: Axis, powers: range) -> float:
    return (math.log(value, axis.base) - powers[0]) / (powers[-1] - powers[0])


def _ticks(powers: range) -> range:
    return powers[:: 1 + len(powers) // 12]


def _frame(x: Axis, xs: range, y: Axis, ys: range) -> Iterator[str]:
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    for power in _ticks(xs):
        at = _LEFT + wide * (power - xs[0]) / (xs[-1] - xs[0])
        yield f'<path d="M{at:.1f} {_TOP}v{high}" stroke="#ddd"/>'
        yield f'<text x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">'
        yield f"{escape(x.text(float(x.base) ** power))}</text>"
    for power in _ticks(ys):
        at = _TOP + high * (ys[-1] - power) / (ys[-1] - ys[0])
        yield f'<path d="M{_LEFT} {at:.1f}h{wide}" stroke="#ddd"/>'
        yield f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">'
        yield f"{escape(y.text(float(y.base) ** power))}</text>"
    yield f'<text x="{_LEFT + wide / 2}" y="{_HEIGHT - 8}" text-anchor="middle">'
    yield f'{escape(x.title)}</text><text x="4" y="14">{escape(y.title)}</text>'


def _line(points: Points, x: Axis, xs: range, y: Axis, ys: range, colour: str) -> Iterator[str]:
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    places = [
        (_LEFT + wide * _share(a, x, xs), _TOP + high * (1 - _share(b, y, ys))) for a, b in points
    ]
    joined = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    yield f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for (a, b), (size, value) in zip(places, points):
        title = f"{x.text(size)}: {y.text(value)}"
        yield f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}">'
        yield f"<title>{escape(title)}</title></circle>"


def chart(x: Axis, y: Axis, lines: Mapping[str, Points]) -> str:
    """An SVG element with a line for each name. Points that are not positive are left out, because
    a logarithmic axis has no place for them."""
    shown = {name: [p for p in points if min(p) > 0] for name, points in lines.items()}
    every = [point for points in shown.values() for point in points]
    if not every:
        return "<p>Nothing was measured.</p>"
    xs, ys = x.powers([a for a, _ in every]), y.powers([b for _, b in every])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        *_frame(x, xs, y, ys),
    ]
    for number, (name, points) in enumerate(shown.items()):
        colour = COLOURS[number % len(COLOURS)]
        parts += _line(points, x, xs, y, ys, colour)
        parts.append(
            f'<text x="{_WIDTH - _RIGHT}" y="{14 + 14 * number}" text-anchor="end" '
            f'fill="{colour}">{escape(name)}</text>'
        )
    return "".join(parts) + "</svg>"
