# SPDX-License-Identifier: Apache-2.0
"""Options that take the address or the port of a flow."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any, Optional

import click


class Address(click.ParamType):
    """An IPv4 address, as text in its usual form."""

    name = "address"

    def convert(
        self, value: Any, param: Optional[click.Parameter], context: Optional[click.Context]
    ) -> str:
        try:
            return str(ipaddress.IPv4Address(value))
        except ValueError:
            self.fail(f"{value!r} is not an IPv4 address", param, context)


class Network(click.ParamType):
    """An IPv4 address, or an address with the length of a prefix. Bits behind the prefix do not
    count."""

    name = "network"

    def convert(
        self, value: Any, param: Optional[click.Parameter], context: Optional[click.Context]
    ) -> ipaddress.IPv4Network:
        try:
            return ipaddress.IPv4Network(value, strict=False)
        except ValueError:
            self.fail(
                f"{value!r} is neither an IPv4 address nor a prefix such as 10.0.0.0/24",
                param,
                context,
            )


Decorator = Callable[[Any], Any]


def jobs_option() -> Decorator:
    """--job: only the processes of one of these jobs."""
    return click.option(
        "--job", "jobs", multiple=True, metavar="NAME", help="Only this job; repeat for more."
    )


def peers_option(what: str) -> Decorator:
    """--peer: only `what` with one of these hosts."""
    return click.option(
        "--peer",
        "peers",
        type=Network(),
        multiple=True,
        metavar="ADDRESS[/PREFIX]",
        help=f"Only {what} with this host, or hosts; repeat for more.",
    )


def ports_option(what: str) -> Decorator:
    """--port: only `what` with one of these TCP ports, from 1 to 65535."""
    return click.option(
        "--port",
        "ports",
        type=click.IntRange(1, 65535),
        multiple=True,
        metavar="PORT",
        help=f"Only {what} with this port at either end; repeat for more.",
    )
