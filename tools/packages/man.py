# SPDX-License-Identifier: Apache-2.0
"""Man pages from the commands' own declarations, in the format of man(7).

python3 man.py FOLDER RELEASE: writes FOLDER/harp.1 and a page for each command. `harp` must be
importable, with its compiled module.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from harp.cli.main import COMMANDS, harp
from harp.cli.run import run
from harp.paths import PACKAGE

_STATUS = "0 success, 1 a failure or a fault found, 2 wrong usage."


def escaped(text: str) -> str:
    """The text as input to troff: no character of it is an instruction. A long list of choices may
    continue on the next line."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("|", "|\\:")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def _paragraphs(text: str) -> Iterator[str]:
    r"""The paragraphs of a docstring. click keeps the lines of one that begins with \b."""
    for i, paragraph in enumerate(inspect.cleandoc(text).split("\n\n")):
        if i:
            yield ".PP"
        if paragraph.startswith("\b\n"):
            yield from (".nf", escaped(paragraph[2:]), ".fi")
        else:
            yield escaped(" ".join(paragraph.split()))


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record and isinstance(parameter, click.Option):
            names, text = record
            yield from (".TP", f".B {escaped(names)}", escaped(" ".join(text.split())))


def _help_of_program(name: str) -> Iterator[str]:
    """What a command prints whose options a program in C reads."""
    # Python's option -m finds a package in the current folder first. pip starts builds in the
    # checkout, whose package lacks the program.
    done = subprocess.run(
        [sys.executable, "-m", "harp", name, "--help"], cwd=PACKAGE.parent,
        stdout=subprocess.PIPE, text=True, timeout=60, check=True,
    )  # fmt: skip
    yield from (".SH DESCRIPTION", ".nf", escaped(done.stdout.rstrip()), ".fi")


def _usage(command: click.Command, context: click.Context) -> str:
    usage = " ".join(command.collect_usage_pieces(context))
    return f".B {escaped(context.command_path)}\n{escaped(usage)}"


def _subcommands(group: click.Group, context: click.Context) -> Iterator[str]:
    yield ".SH COMMANDS"
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command
        inner = click.Context(command, info_name=name, parent=context)
        yield f".SS {escaped(name)}"
        yield from (_usage(command, inner), ".PP")
        yield from _paragraphs(command.help or "")
        yield from _options(command, inner)


def page(name: str, command: click.Command, usage: str, summary: str, release: str) -> str:
    """The page of a command. usage: the arguments that start it, such as "harp perf"; summary: one
    line."""
    context = click.Context(command, info_name=usage)
    context.help_option_names = ["-h", "--help"]
    lines = [
        f'.TH {escaped(name.upper())} 1 "" "HARP {escaped(release)}" "HARP"',
        ".ad l",  # long choices leave no room to justify lines
        ".nh",
        ".SH NAME",
        f"{escaped(name)} \\- {escaped(summary.rstrip('.'))}",
    ]
    if not command.add_help_option:
        lines += _help_of_program(usage.split()[-1])
    else:
        lines += [".SH SYNOPSIS", _usage(command, context), ".SH DESCRIPTION"]
        lines += _paragraphs(command.help or "")
        lines += [".SH OPTIONS", *_options(command, context)]
        if command is harp:
            lines.append(".SH COMMANDS")
            for inner, (_, _, line) in COMMANDS.items():
                lines += [".TP", f".BR harp\\-{inner} (1)", escaped(line)]
            lines += [".SH EXIT STATUS", escaped(_STATUS)]
        elif isinstance(command, click.Group):
            lines += _subcommands(command, context)
    if command is not harp:
        lines += [".SH SEE ALSO", ".BR harp (1)"]
    return "\n".join(lines) + "\n"


def pages(release: str) -> Iterator[tuple[str, str]]:
    """The name of each page's file, and its text."""
    assert harp.help
    yield "harp.1", page("harp", harp, "harp", harp.help, release)
    yield "harprun.1", page("harprun", run, "harprun", "Run a job with HARP.", release)
    for name, (_, _, line) in COMMANDS.items():
        command = harp.get_command(click.Context(harp), name)
        assert command
        yield f"harp-{name}.1", page(f"harp-{name}", command, f"harp {name}", line, release)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in pages(sys.argv[2]):
        (folder / file).write_text(text)
