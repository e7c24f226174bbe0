# SPDX-License-Identifier: Apache-2.0
"""The values of options of `harp perf`."""

from __future__ import annotations

import re
import shlex
from typing import Any, Optional

import click


class Size(click.ParamType):
    """Bytes, or a number with K, M or G (powers of 1024). The text is passed on unchanged."""

    name = "size"

    def convert(
        self, value: Any, param: Optional[click.Parameter], ctx: Optional[click.Context]
    ) -> str:
        if not re.fullmatch(r"[0-9]+[KkMmGg]?", str(value)):
            self.fail(f"{value!r}: give bytes, or a number with K, M or G, like 64K", param, ctx)
        return str(value)


class Hosts(click.ParamType):
    """Names of hosts for ssh, with commas."""

    name = "hosts"

    def convert(
        self, value: Any, param: Optional[click.Parameter], ctx: Optional[click.Context]
    ) -> list[str]:
        hosts = str(value).split(",")
        if len(hosts) < 2 or not all(re.fullmatch(r"[^-\s]\S*", host) for host in hosts):
            self.fail(
                f"{value!r}: give two or more names for ssh, like a,b or root@a,b", param, ctx
            )
        return hosts


class Rendezvous(click.ParamType):
    """HOST:PORT, or unix:PATH."""

    name = "host:port"

    def convert(
        self, value: Any, param: Optional[click.Parameter], ctx: Optional[click.Context]
    ) -> str:
        if not re.fullmatch(r".+:[0-9]{1,5}|unix:/.+", str(value)):
            self.fail(f"{value!r}: give HOST:PORT, an address of rank 0, or unix:PATH", param, ctx)
        return str(value)


class CommandLine(click.ParamType):
    """A command line of a shell. The text is passed on unchanged."""

    name = "command"

    def convert(
        self, value: Any, param: Optional[click.Parameter], ctx: Optional[click.Context]
    ) -> str:
        try:
            args = shlex.split(str(value))
        except ValueError as wrong:
            self.fail(
                f"{value!r}: {wrong}; give a command line of a shell, with each quote closed",
                param, ctx,
            )  # fmt: skip
        if not args:
            self.fail(f"{value!r} is empty: give a command, or leave the option out", param, ctx)
        return str(value)
