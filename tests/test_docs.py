# SPDX-License-Identifier: Apache-2.0
"""What the documents name is there: files and links, commands and their options, configuration
keys and variables, functions and counters."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from harp import cli
from harp.measure import bench, demo, faults, flood, recovery, soak
from harp.run import run
from harp.testing import lab_cli

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("HARP_BUILD_DIR") or ROOT / "build")
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
)

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
VARIABLE = re.compile(r"\bHARP_[A-Z][A-Z_]*\b")

PYTHON_TOOLS: dict[str, click.Command] = {
    "demo": demo.main,
    "bench": bench.main,
    "faults": faults.main,
    "flood": flood.main,
    "recovery": recovery.main,
    "soak": soak.main,
    "lab": lab_cli.main,
}
# Of docker, and of pytest in tests/plugin.
OTHERS_OPTIONS = ("--cap-add", "--net", "--plugin", "--api", "--transport", "--rounds")

MEASURED = [name for name in DOCUMENTS if name.startswith(("docs/results/", "docs/decisions/"))]
SHARED_MEMORY = re.compile(r"\b(vhost|virtio_user|memif)\b")
FIGURES = re.compile(r"<!-- figures: (.*?) -->\n(.*?)<!-- end of figures -->", re.DOTALL)


# -- what there is


@cache
def sources() -> str:
    """The text of all that is built or run."""
    found = []
    for top in ("plugin", "harp", "dpdk_glue", "tools"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.is_file() and path.suffix in (".c", ".h", ".def", ".py", ".pyx", ".build", ""):
                found.append(path.read_text())
    return "\n".join(found)


@cache
def words() -> frozenset[str]:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py")
                      if path != Path(__file__))  # fmt: skip
    return frozenset(re.findall(r"\w+", sources() + tests))


@cache
def keys() -> frozenset[str]:
    listed = (ROOT / "harp/engine/config_keys.def").read_text()
    return frozenset(re.findall(r"^HARP_KEY\((\w+),", listed, re.MULTILINE))


@cache
def options_in_help(*command: str) -> frozenset[str]:
    """Of a program that is no click command."""
    text = subprocess.check_output([*command, "--help"], text=True, timeout=20)
    return frozenset(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", text))


def options_of(command: click.Command) -> frozenset[str]:
    named = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    return frozenset({*named, "--help"})


# -- what a document says


def snippets(text: str) -> Iterator[str]:
    """Inline code, and every line of the fenced blocks that a shell would run, continued ones as
    one and without their comments."""
    for language, body in FENCE.findall(text):
        if language == "sh":
            for line in body.replace("\\\n", " ").splitlines():
                if line.split("#")[0].strip():
                    yield line.split("#")[0].strip()
    yield from CODE.findall(FENCE.sub("", text))


def invocations(text: str) -> Iterator[list[str]]:
    """The project's own commands in a document, in their words."""
    for snippet in snippets(text):
        try:
            line = shlex.split(snippet.replace("…", ""))
        except ValueError:
            continue
        for i, word in enumerate(line):
            if word in ("harp", "harprun", "harp-setup") or re.fullmatch(r"(\./)?tools/\w+", word):
                # In front of harprun stands a launcher, and behind it a job: not ours.
                yield line[i:]
                break


def _options(line: list[str]) -> list[str]:
    return [word.partition("=")[0] for word in line if re.match(r"--?[A-Za-z]", word)]


def _tool(line: list[str]) -> list[str]:
    name = line[0].rpartition("/")[2]
    if not (ROOT / "tools" / name).is_file():
        return [f"there is no tools/{name}"]
    if name in PYTHON_TOOLS:
        return _click_command(PYTHON_TOOLS[name], [f"tools/{name}", *line[1:]])
    usage = re.search(r"^# Usage: .*$", (ROOT / "tools" / name).read_text(), re.MULTILINE)
    known = re.findall(r"--\w+", usage[0] if usage else "")
    return [f"tools/{name} has no option {option}" for option in _options(line[1:])
            if option not in known]  # fmt: skip


def _click_command(command: click.Command, line: list[str]) -> list[str]:
    """Problems of an invocation: subcommands that there are not, options that they do not have."""
    path, rest = line[0], line[1:]
    allowed = set(options_of(command))
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(click.Context(command), rest[0])
        if found is None:
            return [f"{path} has no command {rest[0]}"]
        path, rest, command = f"{path} {rest[0]}", rest[1:], found
        allowed = set(options_of(command))
    if path == "harp nc":
        allowed = set(options_in_help(str(BUILD / "harp/nc/harp-nc")))
    if path == "harprun":  # the job's own words follow its first one
        job = [i for i, word in enumerate(rest) if not word.startswith("-")]
        rest = rest[: job[0]] if job else rest
    return [f"{path} has no option {option}" for option in _options(rest)
            if option not in allowed]  # fmt: skip


def command_problems(text: str) -> list[str]:
    found = []
    for line in invocations(text):
        if "tools/" in line[0]:
            found += _tool(line)
        elif line[0] == "harprun":
            found += _click_command(run, line)
        elif line[0] == "harp-setup":
            found += _click_command(cli.harp, ["harp", "setup", *line[1:]])
        else:
            found += _click_command(cli.harp, line)
    return found


def option_problems(text: str) -> list[str]:
    """Options that stand alone must be some command's."""
    known = set(options_of(run))
    for name in cli.harp.list_commands(click.Context(cli.harp)):
        command = cli.harp.get_command(click.Context(cli.harp), name)
        assert command
        known |= options_of(command)
    for tool in PYTHON_TOOLS.values():
        known |= options_of(tool)
    known |= {"--fast", *OTHERS_OPTIONS}
    alone = [one for one in CODE.findall(FENCE.sub("", text)) if one.startswith("--")]
    return [f"no command has the option {one}" for one in alone
            if re.split(r"[ =]", one)[0] not in known]  # fmt: skip


def file_problems(text: str) -> list[str]:
    """Paths of the checkout, also those that a build makes."""
    tops = tuple(f"{path.name}/" for path in ROOT.iterdir() if path.is_dir())
    found = []
    for one in CODE.findall(FENCE.sub("", text)):
        path = one.removeprefix("./").split()[0] if one.strip() else ""
        if path.startswith("build/"):
            exists = (BUILD / path.removeprefix("build/")).exists()
        elif path.startswith(tops):
            exists = bool(list(ROOT.glob(path.rstrip("/"))))
        elif re.fullmatch(r"\w[\w.]*\.(c|h|def|md|yaml|pyx|build)", path):
            exists = any(True for _ in ROOT.rglob(path))
        else:
            continue
        if not exists:
            found.append(f"there is no {path}")
    return found


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def link_problems(text: str, folder: Path) -> list[str]:
    found = []
    for target in LINK.findall(text):
        if re.match(r"\w+:", target):
            continue
        path, _, fragment = target.partition("#")
        if path and not (folder / path).exists():
            found.append(f"the link to {target} leads nowhere")
        elif fragment:
            there = (folder / path).read_text() if path else text
            if fragment not in map(anchor, HEADING.findall(there)):
                found.append(f"no heading is meant by the link to {target}")
    return found


def key_problems(text: str) -> list[str]:
    """`key = value`, `HARP_<KEY>`, and the rows of the table of keys."""
    found = [name for one in CODE.findall(text) for name in re.findall(r"^([a-z_]+) = ", one)]
    table = text.partition("| key | default |")[2].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        found += CODE.findall(row.split("|")[1])
    unknown = [f"there is no key {name}" for name in found if name not in keys()]
    variables = {f"HARP_{key.upper()}" for key in keys()}
    for name in sorted(set(VARIABLE.findall(text))):
        if name not in variables and not re.search(rf'["\'({{]{name}\b', sources()):
            unknown.append(f"nothing reads {name}")
    return unknown


def name_problems(text: str) -> list[str]:
    """Names with an underscore, and of the form name(): some source has them."""
    found = []
    for one in CODE.findall(FENCE.sub("", text)):
        for name in re.findall(r"^([A-Za-z]\w*_\w+)(?:\(\))?$", one):
            if name not in words() and name.lower() not in keys():
                found.append(f"no source has the name {name}")
    return found


def figure_problems(text: str) -> list[str]:
    """Where figures stand they are a table as tools/bench prints it, under its command."""
    found = FIGURES.findall(text)
    if len(found) != 1 or not found[0][0].startswith("./tools/bench"):
        return ["the figures have no place of their own, or not their command"]
    rows = [line for line in found[0][1].splitlines() if line.startswith("|")]
    if rows and not re.search(r"\| wire +\| operation +\| transport", rows[0]):
        return ["the figures are not tools/bench's table"]
    return []


def label_problems(text: str) -> list[str]:
    """A result over vhost, virtio_user or memif is no figure of a NIC: its section says so."""
    return [f"the section {section.splitlines()[0]} does not say that its link is shared memory"
            for section in re.split(r"^(?=#)", text, flags=re.MULTILINE)
            if SHARED_MEMORY.search(section) and "shared memory" not in section]  # fmt: skip


def problems(text: str, folder: Path) -> list[str]:
    return [*command_problems(text), *option_problems(text), *file_problems(text),
            *link_problems(text, folder), *key_problems(text), *name_problems(text)]  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_a_document_names_is_there(name: str) -> None:
    path = ROOT / name
    found = problems(path.read_text(), path.parent)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", MEASURED)
def test_results_over_shared_memory_say_so(name: str) -> None:
    found = label_problems((ROOT / name).read_text())
    assert not found, "\n".join(found)


def test_a_result_without_its_label_is_seen() -> None:
    text = "# One\nvhost, shared memory\n## Two\nvirtio_user: 3 GB/s\n"
    assert label_problems(text) == [
        "the section ## Two does not say that its link is shared memory"
    ]


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs/decisions"
    index = (folder / "README.md").read_text()
    for path in folder.glob("[0-9]*.md"):
        title = path.read_text().splitlines()[0]
        assert title.startswith(f"# {path.name[:4]} ")
        assert f"| [{path.name[:4]}]({path.name}) | {title[7:]} |" in index


def test_the_figures_stand_under_their_command() -> None:
    assert figure_problems((ROOT / "README.md").read_text()) == []


def test_every_command_is_in_the_table() -> None:
    table = (ROOT / "README.md").read_text().partition("| command |")[2].partition("\n\n")[0]
    for name in cli.harp.list_commands(click.Context(cli.harp)):
        assert f"`harp {name}`" in table
    for name in ("harprun", "harp-setup"):
        assert name in table


FAULTS = {
    "no such command": ("Run `harp frobnicate`.", "harp has no command frobnicate"),
    "no such option": ("```sh\nharp perf sendrecv --fast\n```", "harp perf has no option --fast"),
    "no such option of the netcat": ("`harp nc --udp`", "harp nc has no option --udp"),
    "no such subcommand": ("`harp setup prepare`", "harp setup has no command prepare"),
    "no such tool": ("`./tools/deploy now`", "there is no tools/deploy"),
    "no such option of a tool": ("`tools/bench --slow`", "tools/bench has no option --slow"),
    "no such option of the tests": ("`./tools/test --vms`", "tools/test has no option --vms"),
    "an option of harprun": ("`harprun --force train.py`", "harprun has no option --force"),
    "on a line that goes on": ("```sh\nmpirun -np 2 \\\n  harprun --frob a\n```",
                               "harprun has no option --frob"),
    "an option alone": ("try `--teleport`", "no command has the option --teleport"),
    "no such file": ("see `harp/stack/tcp_magic.c`", "there is no harp/stack/tcp_magic.c"),
    "a file without its folder": ("see `tcp_magic.c`", "there is no tcp_magic.c"),
    "nothing built": ("`build/plugin/libfoo.so`", "there is no build/plugin/libfoo.so"),
    "a link": ("[x](MISSING.md)", "the link to MISSING.md leads nowhere"),
    "a heading": ("# One\n[x](#two)", "no heading is meant by the link to #two"),
    "a key": ("`adress = kernel`", "there is no key adress"),
    "a key of the table": ("| key | default | |\n|---|---|---|\n| `colour` | red | |\n",
                           "there is no key colour"),
    "a variable": ("`HARP_TURBO=1`", "nothing reads HARP_TURBO"),
    "a function": ("`tcp_teleport` and `tcp_output`", "no source has the name tcp_teleport"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault: str) -> None:
    text, expected = FAULTS[fault]
    assert expected in problems(text, ROOT)


def test_strange_figures_are_seen() -> None:
    place = "<!-- figures: {} -->\n{}<!-- end of figures -->"
    assert figure_problems("no figures")
    assert figure_problems(place.format("./tools/demo", ""))
    assert figure_problems(place.format("./tools/bench --quick", "| a | b |\n"))
    assert not figure_problems(place.format("./tools/bench", "| wire | operation | transport |\n"))
