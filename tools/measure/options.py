# SPDX-License-Identifier: Apache-2.0
"""Options that several commands of this folder have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def json_option(what: str) -> Decorator:
    """--json FILE, as `json_path`."""
    return click.option(
        "--json",
        "json_path",
        type=click.Path(dir_okay=False, path_type=Path),
        help=f"Write {what} to this file.",
    )


first_option: Decorator = click.option(
    "--first", is_flag=True, help="The ranks run before other work on this machine, if it has any."
)
