# SPDX-License-Identifier: Apache-2.0
"""The types of options that take an address."""

from __future__ import annotations

import ipaddress
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
