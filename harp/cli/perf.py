# SPDX-License-Identifier: Apache-2.0
"""`harp perf`: drives an NCCL net plugin as NCCL's proxy does, and measures it.

The loop is a C program; this command checks what was asked and hands it over.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Callable, Optional

import click

from harp import paths

OPERATIONS = ("all_reduce", "sendrecv", "sendrecv_bidir", "pingpong", "mixed")


class Size(click.ParamType):
    """Bytes, or a number with K, M or G (powers of 1024); passed on as written."""

    name = "size"

    def convert(
        self, value: Any, param: Optional[click.Parameter], ctx: Optional[click.Context]
    ) -> str:
        if not re.fullmatch(r"[0-9]+[KkMmGg]?", str(value)):
            self.fail(f"{value!r}: give bytes, or a number with K, M or G, like 64K", param, ctx)
        return str(value)


class Meeting(click.ParamType):
    """HOST:PORT."""

    name = "host:port"

    def convert(
        self, value: Any, param: Optional[click.Parameter], ctx: Optional[click.Context]
    ) -> str:
        if not re.fullmatch(r".+:[0-9]{1,5}", str(value)):
            self.fail(f"{value!r}: give HOST:PORT, an address of rank 0", param, ctx)
        return str(value)


# Every option with its words for the C program, which knows the defaults.
_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("-b", "--min"), {"type": Size(), "help": "Smallest message [8]."}),
    (("-e", "--max"), {"type": Size(), "help": "Largest message [64M]."}),
    (
        ("-f", "--factor"),
        {"type": click.IntRange(2), "help": "Each size is so many times the last [2]."},
    ),
    (
        ("-n", "--iterations"),
        {"type": click.IntRange(1), "help": "Timed, and verified, of each size [20]."},
    ),
    (
        ("-w", "--warmup"),
        {"type": click.IntRange(0), "help": "Iterations before the clock starts [5]."},
    ),
    (
        ("--outstanding",),
        {"type": click.IntRange(1, 32), "help": "Requests at a time [all_reduce 4, else 8]."},
    ),
    (
        ("--step",),
        {"type": Size(), "help": "Larger messages go in steps [all_reduce 1M, else 128K]."},
    ),
    (("--rate",), {"type": float, "metavar": "GBIT", "help": "Offer no more than so many Gbit/s."}),
    (
        ("--plugin",),
        {"type": click.Path(exists=True, dir_okay=False), "help": "A libnccl-net.so [HARP's]."},
    ),
    (
        ("--api",),
        {"type": click.IntRange(4, 12), "help": "Version of its interface [the highest it has]."},
    ),
    (
        ("--flows",),
        {
            "type": click.IntRange(1, 16),
            "help": "HARP's TCP connections per link [those of its configuration].",
        },
    ),
    (("--kernel",), {"is_flag": True, "help": "HARP's plain kernel-TCP plugin instead."}),
    (
        ("--nsocks",),
        {"type": click.Choice(["1", "2", "4"]), "help": "With --kernel: sockets per link [1]."},
    ),
    (("--kernel-cc",), {"metavar": "NAME", "help": "With --kernel: congestion control [cubic]."}),
    (
        ("--rank",),
        {"type": click.IntRange(0), "help": "This rank; mpirun, torchrun and srun tell it, too."},
    ),
    (("--nranks",), {"type": click.IntRange(2), "help": "How many there are."}),
    (("--rendezvous",), {"type": Meeting(), "help": "Where rank 0 listens for the others."}),
    (
        ("--json",),
        {
            "type": click.Path(dir_okay=False),
            "metavar": "FILE",
            "help": "Rank 0 writes its records (harp.perf/1); - is standard output.",
        },
    ),
    (
        ("--verified",),
        {"is_flag": True, "help": "Only verify, time nothing; mixed never times."},
    ),
    (
        ("--hugepages",),
        {
            "is_flag": True,
            "help": "What is sent and received lies in hugepages of 2 MiB, which a NIC can read in "
            "place also without an IOMMU.",
        },
    ),
    (
        ("--pause",),
        {
            "type": click.IntRange(1, 3600000),
            "metavar": "MS",
            "help": "At SIGUSR1 all_reduce begins its next verified iteration so late.",
        },
    ),
    (
        ("--inject-wrong",),
        {"is_flag": True, "help": "Flip one received byte of each size before it is verified."},
    ),
    (
        ("--timeout",),
        {
            "type": click.IntRange(1, 3600),
            "metavar": "SECONDS",
            "help": "The longest wait for any progress [90].",
        },
    ),
    (
        ("--wire-name",),
        {
            "metavar": "TEXT",
            "help": "A label: it changes nothing, and the records say what you say here. So are "
            "the five below.",
        },
    ),
    (("--transport-name",), {"metavar": "TEXT"}),
    (("--label-direction",), {"metavar": "TEXT"}),
    (("--label-offloads",), {"metavar": "TEXT"}),
    (("--label-mtu",), {"type": click.IntRange(576, 65535)}),
    (("--label-pair",), {"type": click.IntRange(0)}),
)


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    for names, settings in reversed(_OPTIONS):
        command = click.option(*names, **settings)(command)
    return command


def arguments(op: str, options: dict[str, Any]) -> list[str]:
    """The C program's words for options as click hands them over (None and False: not given)."""
    words = [op]
    for name, value in options.items():
        if value is True:
            words.append("--" + name.replace("_", "-"))
        elif value is not None and value is not False:
            words += ["--" + name.replace("_", "-"), str(value)]
    return words


def _check(options: dict[str, Any]) -> None:
    if not options["kernel"] and (options["nsocks"] or options["kernel_cc"]):
        raise click.UsageError("--nsocks and --kernel-cc go with --kernel")
    if options["kernel"] and options["flows"]:
        raise click.UsageError("--flows are HARP's; --kernel has --nsocks")
    if options["kernel"] and options["plugin"]:
        raise click.UsageError("--kernel names a plugin, and --plugin another: give one")


def _program_and_plugin(options: dict[str, Any]) -> Path:
    """The program; sees to it that a plugin is there. ClickException: build it first."""
    try:
        if options["kernel"]:
            paths.kernel_plugin_path()
        elif not options["plugin"]:
            options["plugin"] = paths.nccl_plugin_path()
        return paths.perf_program()
    except FileNotFoundError as error:
        raise click.ClickException(str(error)) from error


@click.command()
@click.argument("op", type=click.Choice(OPERATIONS))
@_with_options
def perf(op: str, **options: Any) -> None:
    """Measure a plugin between ranks, every byte verified.

    Start it on every host with its --rank, the same --nranks and the same
    --rendezvous, or by mpirun, torchrun or srun. all_reduce sums uint32 around
    the ring; sendrecv goes from rank 0 to 1; pingpong times full round trips;
    mixed sends messages both ways, each of a size of its own, mostly small.

    Exit: 0 all well, 1 it failed or bytes arrived wrong, 2 wrong usage.
    """
    _check(options)
    program = _program_and_plugin(options)
    # The program takes this process's place: signals and status are its own.
    os.execv(program, [str(program), *arguments(op, options)])
