# SPDX-License-Identifier: Apache-2.0
"""Families of Prometheus' metrics, and its text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Union

Number = Union[int, float]


@dataclass(frozen=True)
class Family:
    """A family of metrics. name: with `_total` if it is a counter. kind: counter, gauge or
    histogram. A sample is its name, its labels and its value."""

    name: str
    kind: str
    sentence: str
    samples: list[tuple[str, dict[str, str], Number]] = field(default_factory=list)

    def add(self, value: Number, **labels: Any) -> None:
        """Adds a sample with the family's own name."""
        self.samples.append((self.name, {key: str(one) for key, one in labels.items()}, value))


def labels(**values: Any) -> str:
    """The labels of a sample, without their braces."""

    def escaped(value: Any) -> str:
        return str(value).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

    return ",".join(f'{name}="{escaped(value)}"' for name, value in values.items())


def family(name: str, kind: str, sentence: str) -> Iterator[str]:
    """The head of a family. kind: counter, gauge or histogram."""
    yield f"# HELP {name} {sentence}"
    yield f"# TYPE {name} {kind}"


def sample(name: str, value: Any, **of: Any) -> str:
    return f"{name}{{{labels(**of)}}} {value}" if of else f"{name} {value}"


def lines(families: Iterable[Family]) -> Iterator[str]:
    """The families in Prometheus' text format, a line each time."""
    for one in families:
        yield from family(one.name, one.kind, one.sentence)
        for name, of, value in one.samples:
            yield sample(name, value, **of)
