# SPDX-License-Identifier: Apache-2.0
"""Lines of Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def labels(**values: Any) -> str:
    """The labels of a sample, without their braces."""

    def escaped(value: Any) -> str:
        return str(value).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

    return ",".join(f'{name}="{escaped(value)}"' for name, value in values.items())


def family(name: str, kind: str, sentence: str) -> Iterator[str]:
    """The head of a family. kind: counter or gauge."""
    yield f"# HELP {name} {sentence}"
    yield f"# TYPE {name} {kind}"


def sample(name: str, value: Any, **of: Any) -> str:
    return f"{name}{{{labels(**of)}}} {value}" if of else f"{name} {value}"
