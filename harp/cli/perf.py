# SPDX-License-Identifier: Apache-2.0
"""`harp perf`: drives an NCCL net plugin as NCCL's proxy does, and measures it.

The loop is a C program. This command checks the options and runs it, here or on several hosts.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Optional

import click

from harp import paths
from harp.api_versions import APIS
from harp.check import launcher
from harp.cli import perf_html
from harp.cli.perf_runs import HostRanks, rendezvous_at, run_program
from harp.cli.perf_types import CommandLine, Hosts, Rendezvous, Size
from harp.cli.stop import before_exec

OPERATIONS = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "all_to_all",
    "sendrecv",
    "sendrecv_bidir",
    "pingpong",
    "mixed",
)
DATATYPES = ("int32", "uint32", "int64", "uint64", "float32", "float64")


# The options that become those of the C program. The C program has the defaults.
_PASSED_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("-b", "--min"), {"type": Size(), "help": "Smallest message [8]."}),
    (("-e", "--max"), {"type": Size(), "help": "Largest message [64M]."}),
    (
        ("-f", "--factor"),
        {"type": click.IntRange(2), "help": "The factor between a size and the next [2]."},
    ),
    (
        ("--sizes",),
        {
            "metavar": "SIZE[:N[:W]],...",
            "help": "Sizes instead of -b, -e and -f, each with N timed and W untimed iterations.",
        },
    ),
    (
        ("-n", "--iterations"),
        {"type": click.IntRange(1), "help": "Timed and verified iterations of each size [20]."},
    ),
    (
        ("-w", "--warmup"),
        {"type": click.IntRange(0), "help": "Untimed iterations before the timed ones [5]."},
    ),
    (
        ("--verified-iterations",),
        {
            "type": click.IntRange(1),
            "help": "Iterations of each verified pass, at most those of the timed one.",
        },
    ),
    (
        ("--outstanding",),
        {"type": click.IntRange(1, 32), "help": "Requests at a time [rings 4, else 8]."},
    ),
    (
        ("--step",),
        {"type": Size(), "help": "Largest piece of a message [rings 1M, else 128K]."},
    ),
    (
        ("--channels",),
        {
            "type": click.IntRange(1, 32),
            "help": "Rings that divide each message of a ring or of sendrecv. Ring i uses device "
            "i, modulo the number of devices [1].",
        },
    ),
    (
        ("--datatype",),
        {
            "type": click.Choice(DATATYPES),
            "help": "What all_reduce and reduce_scatter add up [uint32].",
        },
    ),
    (("--rate",), {"type": float, "metavar": "GBIT", "help": "Limit of the offered Gbit/s."}),
    (
        ("--rest",),
        {
            "is_flag": True,
            "help": "With --rate and sendrecv: sleep between messages, as NCCL's progress thread "
            "does between operations.",
        },
    ),
    (
        ("--plugin",),
        {"type": click.Path(exists=True, dir_okay=False), "help": "A libnccl-net.so [HARP's]."},
    ),
    (
        ("--api",),
        {
            "type": click.IntRange(APIS[0], APIS[-1]),
            "help": "Version of its interface [its highest].",
        },
    ),
    (
        ("--flows",),
        {
            "type": click.IntRange(1, 16),
            "help": "HARP's TCP connections per link [the value of ztcp*.conf].",
        },
    ),
    (("--kernel",), {"is_flag": True, "help": "Measure the reference plugin over kernel TCP."}),
    (
        ("--nsocks",),
        {"type": click.Choice(["1", "2", "4"]), "help": "With --kernel: sockets per link [1]."},
    ),
    (("--kernel-cc",), {"metavar": "NAME", "help": "With --kernel: congestion control [cubic]."}),
    (
        ("--rank",),
        {"type": click.IntRange(0), "help": "This rank [from mpirun, torchrun or srun]."},
    ),
    (("--nranks",), {"type": click.IntRange(2), "help": "The number of ranks."}),
    (
        ("--rendezvous",),
        {"type": Rendezvous(), "help": "Rank 0's listening address, or unix:PATH."},
    ),
    (
        ("--json",),
        {
            "type": click.Path(dir_okay=False),
            "metavar": "FILE",
            "help": "Rank 0's file for the records (harp.perf/1); - is standard output.",
        },
    ),
    (
        ("--verified",),
        {"is_flag": True, "help": "Verify without timing. mixed never times."},
    ),
    (
        ("--hugepages",),
        {
            "is_flag": True,
            "help": "Put the buffers into 2 MiB hugepages. A NIC can read these in place also "
            "without an IOMMU.",
        },
    ),
    (
        ("--pause",),
        {
            "type": click.IntRange(1, 3600000),
            "metavar": "MS",
            "help": "Delay of a ring's next verified iteration after SIGUSR1.",
        },
    ),
    (
        ("--inject-wrong",),
        {"is_flag": True, "help": "Flip one received byte of each size before the check."},
    ),
    (
        ("--timeout",),
        {
            "type": click.IntRange(1, 3600),
            "metavar": "SECONDS",
            "help": "Longest wait for progress [90].",
        },
    ),
    (
        ("--wire-name",),
        {
            "metavar": "TEXT",
            "help": "A label for the records, without other effect. The five options below are "
            "labels, too.",
        },
    ),
    (("--transport-name",), {"metavar": "TEXT"}),
    (("--label-direction",), {"metavar": "TEXT"}),
    (("--label-offloads",), {"metavar": "TEXT"}),
    (("--label-mtu",), {"type": click.IntRange(576, 65535)}),
    (("--label-pair",), {"type": click.IntRange(0)}),
)


# The options of this command alone.
_OWN_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--hosts",),
        {
            "type": Hosts(),
            "metavar": "HOST,...",
            "help": "Start a rank on each of these hosts over ssh, in this order.",
        },
    ),
    (
        ("--ssh",),
        {
            "type": CommandLine(),
            "metavar": "COMMAND",
            "default": "ssh -o BatchMode=yes",
            "show_default": True,
            "help": "With --hosts: it gets the host and a command line of a shell.",
        },
    ),
    (
        ("--remote-harp",),
        {
            "type": CommandLine(),
            "metavar": "COMMAND",
            "default": "harp",
            "show_default": True,
            "help": "With --hosts: HARP's command there, such as /opt/venv/bin/harp.",
        },
    ),
    (
        ("--html",),
        {
            "type": click.Path(dir_okay=False, path_type=Path),
            "metavar": "FILE",
            "help": "Measure HARP, then the kernel's TCP, and let rank 0 write a page with curves.",
        },
    ),
    (
        ("--until-eof",),
        {"is_flag": True, "help": "End when standard input ends. --hosts starts ranks with it."},
    ),
)


OWN_NAMES = tuple(names[-1][2:].replace("-", "_") for names, _ in _OWN_OPTIONS)


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    for names, settings in reversed(_PASSED_OPTIONS + _OWN_OPTIONS):
        command = click.option(*names, **settings)(command)
    return command


def arguments(op: str, options: dict[str, Any]) -> list[str]:
    """The C program's arguments for click's options. None and False mean: not given."""
    args = [op]
    for name, value in options.items():
        if value is True:
            args.append("--" + name.replace("_", "-"))
        elif value is not None and value is not False:
            args += ["--" + name.replace("_", "-"), str(value)]
    return args


def _check(op: str, options: dict[str, Any], own: dict[str, Any]) -> None:
    if own["html"] and (options["kernel"] or options["json"]):
        raise click.UsageError("--html measures HARP and the kernel: leave --kernel and --json out")
    if own["hosts"] and (options["rank"] is not None or options["nranks"]):
        raise click.UsageError("--hosts sets the ranks: leave --rank and --nranks out")
    if not options["kernel"] and not own["html"] and (options["nsocks"] or options["kernel_cc"]):
        raise click.UsageError("--nsocks and --kernel-cc need --kernel")
    if options["kernel"] and options["flows"]:
        raise click.UsageError("--flows is for HARP; use --nsocks with --kernel")
    if options["datatype"] and op not in ("all_reduce", "reduce_scatter"):
        raise click.UsageError(f"--datatype is for all_reduce and reduce_scatter; {op} moves bytes")
    if options["kernel"] and options["plugin"]:
        raise click.UsageError("--kernel and --plugin select different plugins: give one of them")


def _program_and_plugin(options: dict[str, Any]) -> Path:
    """The C program's path. Sets the default plugin. Raises ClickException if one is not built."""
    try:
        if options["kernel"]:
            paths.kernel_plugin_path()
        elif not options["plugin"]:
            options["plugin"] = paths.nccl_plugin_path()
        return paths.perf_program()
    except FileNotFoundError as error:
        raise click.ClickException(str(error)) from error


def _measure(
    op: str, options: dict[str, Any], own: dict[str, Any], ranks: Optional[HostRanks]
) -> int:
    """Measures once, and returns the exit status. Raises ClickException, or OSError for --json."""
    if not ranks:
        program = _program_and_plugin(options)
        return run_program([str(program), *arguments(op, options)], own["until_eof"])
    rendezvous = options["rendezvous"] or rendezvous_at(own["hosts"][0])
    shared = {**options, "nranks": len(own["hosts"]), "rendezvous": rendezvous}
    file = shared.pop("json")

    def args(rank: int) -> list[str]:
        more = {"json": "-"} if file and rank == 0 else {}
        return arguments(op, {**shared, "rank": rank, **more})

    listed = ", ".join(f"rank {number} on {host}" for number, host in enumerate(own["hosts"]))
    click.echo(f"harp perf: {listed}; they meet at {rendezvous}", err=True)
    if not file or file == "-":
        return ranks.run(args)
    with open(file, "w") as output:
        return ranks.run(args, output)


def _writes_page(options: dict[str, Any], own: dict[str, Any]) -> bool:
    """Whether this process writes the file of --html. False if the rank is unknown: the C program
    says then what is missing."""
    if own["hosts"]:
        return True
    try:
        place = launcher.find(
            options["rank"], options["nranks"], options["rendezvous"], os.environ
        )  # fmt: skip
    except launcher.Unknown:
        return False
    return place.rank == 0


def _check_writable(file: Path) -> None:
    """Opens a file for writing, and leaves things as they are. Raises OSError."""
    new = not file.exists()
    with file.open("a"):
        pass
    if new:
        file.unlink()


def _with_kernel(
    op: str, options: dict[str, Any], own: dict[str, Any], ranks: Optional[HostRanks]
) -> int:
    """Measures HARP and the kernel, and writes the page on rank 0. As _measure."""
    if _writes_page(options, own):
        _check_writable(own["html"])
    kernels = ("nsocks", "kernel_cc")
    runs = (
        {**options, **dict.fromkeys(kernels)},
        {**options, "kernel": True, "plugin": None, "flows": None},
    )
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number, run in enumerate(runs):
            file = Path(folder) / f"{number}.json"
            status = _measure(op, {**run, "json": str(file)}, own, ranks)
            if status:
                return status
            if file.exists():  # on rank 0
                found.append(json.loads(file.read_text(encoding="utf-8")))
    if found:
        own["html"].write_text(perf_html.page(*found), encoding="utf-8")
    return 0


@click.command()
@click.argument("op", type=click.Choice(OPERATIONS))
@_with_options
def perf(op: str, **options: Any) -> None:
    """Measure a plugin between ranks, and verify every byte.

    Start it on every host with its --rank, the same --nranks and the same
    --rendezvous, or by mpirun, torchrun or srun, or on one host with --hosts.
    all_reduce, reduce_scatter, all_gather and broadcast are NCCL's rings. In
    all_to_all each rank exchanges blocks with every other one. sendrecv sends
    from rank 0 to 1. pingpong times full round trips. mixed sends messages of
    random sizes both ways, most of them small.

    Exit: 0 success, 1 a failure or wrong bytes, 2 wrong usage.
    """
    own = {name: options.pop(name) for name in OWN_NAMES}
    _check(op, options, own)
    if not own["hosts"] and not own["html"] and not own["until_eof"]:
        program = _program_and_plugin(options)
        # exec: the program receives the signals itself and sets the exit status.
        before_exec()
        os.execv(program, [str(program), *arguments(op, options)])
        return
    ranks = HostRanks(own["hosts"], own["ssh"], own["remote_harp"]) if own["hosts"] else None
    try:
        sys.exit((_with_kernel if own["html"] else _measure)(op, options, own, ranks))
    except OSError as failure:
        raise click.ClickException(f"{failure}; is the folder there and writable?") from failure
