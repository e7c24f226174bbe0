# SPDX-License-Identifier: Apache-2.0
"""Options that several commands of this folder share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import click

from tools.measure.records import unwritable

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _check_writable(
    context: click.Context, parameter: click.Parameter, path: Optional[Path]
) -> Optional[Path]:
    problem = path and unwritable(path)
    if problem:
        raise click.BadParameter(problem)
    return path


def json_option(what: str) -> Decorator:
    """The option --json FILE; its parameter is `json_path`."""
    return click.option(
        "--json",
        "json_path",
        type=click.Path(path_type=Path),
        callback=_check_writable,
        help=f"Write {what} to this file.",
    )


first_option: Decorator = click.option(
    "--first", is_flag=True, help="Give the ranks priority over other work on this machine."
)
