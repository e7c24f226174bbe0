# SPDX-License-Identifier: Apache-2.0
"""What the documents name is there: files and links, commands and their options, configuration
keys and variables, functions and counters, lines of the log. The pages for users hold all commands,
keys and variables, say nothing twice, and have each figure beside its command."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from harp import _tables
from harp.cli import main as cli
from harp.cli.run import run
from harp.observe.metrics import family_of
from tools.hosts import lab_cli
from tools.measure import bench, demo, faults, flood, recovery, soak
from tools.measure.jobs import command as jobs

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("HARP_BUILD_DIR") or ROOT / "build")
# Those for users, which no other page repeats.
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
RECIPES = sorted(f"docs/recipes/{path.name}" for path in (ROOT / "docs/recipes").glob("*.md"))
MEASURED = sorted(
    str(path.relative_to(ROOT))
    for folder in ("decisions", "results")
    for path in (ROOT / "docs" / folder).glob("*.md")
)
DOCUMENTS = (*PAGES, *RECIPES, "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md",
             *MEASURED)  # fmt: skip
FIGURES_PAGE = "docs/results/bench.md"  # the whole table; README has some of its rows
README_MOST = 200  # lines
RECIPE_MOST = 120
PAGE_MOST = 600

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
SHARED_MEMORY = re.compile(r"\b(vhost|virtio_user|memif)\b")
VARIABLE = re.compile(r"\bHARP_[A-Z][A-Z_]*\b")

PYTHON_TOOLS: dict[str, click.Command] = {
    "demo": demo.main,
    "bench": bench.main,
    "faults": faults.main,
    "flood": flood.main,
    "recovery": recovery.main,
    "soak": soak.main,
    "lab": lab_cli.main,
    "jobs": jobs.main,
}
# Of docker, of pytest in tests/plugin, and of programs behind tools/.
OTHERS_OPTIONS = ("--cap-add", "--device", "--net", "--ulimit", "--plugin", "--api", "--transport",
                  "--rounds", "--fast", "--sanitize", "--fuzz", "--coverage",
                  "--tests")  # fmt: skip

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
    return frozenset(key["name"] for key in _tables.keys())


@cache
def counters() -> frozenset[str]:
    return frozenset(counter["name"] for counter in _tables.counters())


@cache
def families() -> frozenset[str]:
    return frozenset(family_of(one["name"], one["kind"]) for one in _tables.counters())


@cache
def log_lines() -> str:
    """What sources say to people: their texts, pieces joined, with … for what is filled in."""
    joined = re.sub(r'"\s*\n\s*"', "", sources())
    joined = re.sub(r"%[-#0 +]*[\d*]*(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j)?[a-zA-Z]", "…", joined)
    return joined.replace('\\"', '"')


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
                # In front of harprun stands a launcher, and behind it a job: not ours. Behind a
                # pipe stands another program.
                yield line[i : line.index("|", i) if "|" in line[i:] else None]
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
    known |= set(OTHERS_OPTIONS)
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


def headings(text: str) -> list[str]:
    return [anchor(one) for one in HEADING.findall(FENCE.sub("", text))]


def link_problems(text: str, folder: Path) -> list[str]:
    found = []
    for target in LINK.findall(text):
        if re.match(r"\w+:", target):
            continue
        path, _, fragment = target.partition("#")
        if path and not (folder / path).exists():
            found.append(f"the link to {target} leads nowhere")
        elif fragment:
            meant = headings((folder / path).read_text() if path else text).count(fragment)
            if meant != 1:
                found.append(f"{meant or 'no'} headings are meant by the link to {target}")
    return found


def rows(text: str, heading: str) -> Iterator[list[str]]:
    """The cells of the tables that begin so."""
    for table in text.split(heading)[1:]:
        for row in table.partition("\n\n")[0].splitlines()[2:]:
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


def key_problems(text: str) -> list[str]:
    """`key = value`, `HARP_<KEY>`, and the rows of the table of keys."""
    found = [name for one in CODE.findall(text) for name in re.findall(r"^([a-z_]+) = ", one)]
    for key, *_ in rows(text, "| key | default |"):
        found += CODE.findall(key)
    unknown = [f"there is no key {name}" for name in found if name not in keys()]
    variables = {f"HARP_{key.upper()}" for key in keys()}
    for name in sorted(set(VARIABLE.findall(text))):
        if name not in variables and not re.search(rf'["\'({{]{name}\b', sources()):
            unknown.append(f"nothing reads {name}")
    return unknown


def name_problems(text: str) -> list[str]:
    """Names with an underscore, and of the form name(): some source has them. Families of
    Prometheus are made of counters' names."""
    found = []
    for one in CODE.findall(FENCE.sub("", text)):
        for name in re.findall(r"^([A-Za-z]\w*_\w+)(?:\(\))?$", one):
            known = name in words() or name in families() or name.lower() in keys()
            if not known:
                found.append(f"no source has the name {name}")
    return found


def setting_problems(text: str) -> list[str]:
    """Lines of a ztcp*.conf that are shown are good ones; … stands for what a reader fills in."""
    shown = [one for one in CODE.findall(FENCE.sub("", text)) if re.match(r"\w+ = ", one)]
    for _, body in FENCE.findall(text):
        lines = [line for line in body.splitlines() if line.strip()]
        if all(re.match(r"\w+ = ", line) for line in lines):
            shown += lines
    found = []
    for one in shown:
        before = "" if one.startswith("device") else "device = packet:eth0\n"
        before += "address = 10.0.3.7/24\n" if "dpdk:" in one or one.startswith("gateway") else ""
        try:
            _tables.parse(f"{before}{one}\n".encode(), "")
        except _tables.ConfigError as wrong:
            found += [] if "…" in one else [str(wrong)]
    return found


# -- what the pages for users hold


def figure_problems(text: str) -> list[str]:
    """Where figures stand they are a table as tools/bench prints it, under its command."""
    found = FIGURES.findall(text)
    if len(found) != 1 or not found[0][0].startswith("./tools/bench"):
        return ["the figures have no place of their own, or not their command"]
    lines = [line for line in found[0][1].splitlines() if line.startswith("|")]
    if lines and not re.search(r"\| wire +\| operation +\| transport", lines[0]):
        return ["the figures are not tools/bench's table"]
    return []


def figures_of(cells: list[list[str]]) -> dict[tuple[str, str], dict[str, list[str]]]:
    """Of tools/bench's table, for each wire and operation: the kernel's figure, HARP's, ratios."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for wire, operation, transport, rate, p50, _, _, ratio in cells:
        at = found.setdefault((wire, operation), {"kernel": [], "HARP": [], "ratio": []})
        first = [cell.split(" ")[0] for cell in (rate, p50, ratio)]
        figure = first[1] if operation.startswith(("pingpong", "all_reduce")) else first[0]
        if transport.startswith("kernel-tcp"):
            at["kernel"].append(figure)
        elif transport.startswith("harp"):
            at["HARP"].append(figure)
            at["ratio"].append(first[2])
    return found


def digest_problems(digest: str, whole: str) -> list[str]:
    """A shorter table of figures says what tools/bench's table says."""
    tables = [FIGURES.findall(text) for text in (digest, whole)]
    if any(len(one) != 1 for one in tables) or tables[0][0][0] != tables[1][0][0]:
        return ["the two tables of figures are not there, or of two commands"]
    wanted = figures_of(list(rows(f"{tables[1][0][1]}\n\n", "| wire ")))
    found = []
    for wire, _, operation, *shown in rows(f"{tables[0][0][1]}\n\n", "| wire "):
        at = wanted.get((wire.strip("`"), operation))
        numbers = [re.findall(r"\d[\d.]*", cell) for cell in shown]
        if at is None or numbers != [at["kernel"], at["HARP"], at["ratio"]]:
            found.append(f"{wire}, {operation}: other figures than in the whole table")
    return found


def prose(text: str) -> str:
    """Without blocks of code, comments and tables."""
    lines = FENCE.sub("", FIGURES.sub("", text)).splitlines()
    return "\n".join(line for line in lines if not re.match(r"\|| *<!--", line))


def lonely_figures(text: str) -> list[str]:
    """Paragraphs and points of lists with measured figures and no command that repeats them."""
    found = []
    for one in re.split(r"\n\n|\n(?=- )", prose(text)):
        if re.search(r"\d ?(?:×|[GM]B/s|µs)", one) and not re.search(r"`(?:\./)?tools/\w+", one):
            found.append(f"figures without their command: {one.strip()[:60]}")
    return found


def repeated(texts: list[str]) -> list[str]:
    """Sentences of eight words and more that stand twice."""
    sentences = [" ".join(one.split()) for text in texts
                 for one in re.split(r"(?<=[.:!?])\s+|\n\n|\n(?=- )", prose(text))]  # fmt: skip
    return sorted({f"said twice: {one}" for one in sentences
                   if len(one.split()) >= 8 and sentences.count(one) > 1})  # fmt: skip


def line_problems(text: str) -> list[str]:
    """Lines of the log in tables of errors are ones that some source can say."""
    return [f"no source says {part!r}" for cell, _ in rows(text, "| line | remedy |")
            for one in CODE.findall(cell) for part in map(str.strip, one.split("…"))
            if part not in log_lines()]  # fmt: skip


def counter_problems(text: str) -> list[str]:
    return [f"there is no counter {name}" for cell, *_ in rows(text, "| counter |")
            for name in CODE.findall(cell) if name not in counters()]  # fmt: skip


def configure_problems(text: str) -> list[str]:
    """The page of the configuration has each key with its default and range, and each variable."""
    table = {CODE.findall(row[0])[0]: row[1:] for row in rows(text, "| key | default |")}
    found = [f"the key {key} is missing" for key in sorted(keys() - set(table))]
    for key in _tables.keys():
        cells = table.get(key["name"], [key["default"], "", f"{key['min']} to {key['max']}"])
        if cells[0].replace("`", "") != key["default"]:
            found.append(f"{key['name']}: its default is {key['default']}")
        if key["max"] is not None and cells[2] != f"{key['min']} to {key['max']}":
            found.append(f"{key['name']}: its range is {key['min']} to {key['max']}")
    listed = re.search(r"from the file alone: (.*?)\.\s", text, re.DOTALL)
    alone = {key["name"] for key in _tables.keys() if key["file_only"]}
    if set(CODE.findall(listed[1] if listed else "")) != alone:
        found.append(f"of the file alone are {', '.join(sorted(alone))}")
    variables = "".join(row[0] for row in rows(text, "| variable | effect |"))
    found += [f"the variable {one['name']} is missing" for one in _tables.variables()
              if one["name"] not in variables]  # fmt: skip
    return found


def commands_missing(text: str) -> list[str]:
    table = "".join(row[0] + row[1] for row in rows(text, "| command | use |"))
    wanted = [f"harp {name}" for name in cli.harp.list_commands(click.Context(cli.harp))]
    return [f"{name} is missing" for name in (*wanted, "harprun", "harp-setup")
            if f"`{name}" not in table]  # fmt: skip


def problems_of_others(text: str, folder: Path) -> list[str]:
    """Of a page that also names options, variables and settings of other programs."""
    return [*command_problems(text), *file_problems(text), *link_problems(text, folder),
            *key_problems(text), *setting_problems(text)]  # fmt: skip


def problems(text: str, folder: Path) -> list[str]:
    return [*problems_of_others(text, folder), *option_problems(text), *name_problems(text)]


def read(name: str) -> str:
    return (ROOT / name).read_text()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_a_document_names_is_there(name: str) -> None:
    path = ROOT / name
    check = problems_of_others if name in RECIPES else problems
    found = check(path.read_text(), path.parent)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", [*PAGES, *RECIPES])
def test_a_page_for_users(name: str) -> None:
    text = read(name)
    most = RECIPE_MOST if name in RECIPES else README_MOST if name == "README.md" else PAGE_MOST
    assert len(text.splitlines()) <= most
    found = [*lonely_figures(text), *line_problems(text), *counter_problems(text)]
    assert not found, "\n".join(found)


def test_nothing_is_said_twice() -> None:
    assert repeated([read(name) for name in (*PAGES, *RECIPES)]) == []


def test_each_page_is_linked() -> None:
    assert set(PAGES) - set(LINK.findall(read("README.md"))) == {"README.md"}
    assert "docs/recipes/README.md" in LINK.findall(read("README.md"))
    index = {f"docs/recipes/{name}" for name in LINK.findall(read("docs/recipes/README.md"))}
    assert set(RECIPES) - index == {"docs/recipes/README.md"}


def test_the_figures_stand_under_their_command() -> None:
    assert figure_problems(read(FIGURES_PAGE)) == []
    assert digest_problems(read("README.md"), read(FIGURES_PAGE)) == []


def test_every_command_is_in_the_table() -> None:
    assert commands_missing(read("docs/operate.md")) == []


def test_every_key_and_variable_is_explained() -> None:
    assert configure_problems(read("docs/configure.md")) == []


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
    "a heading": ("# One\n[x](#two)", "no headings are meant by the link to #two"),
    "two headings": ("# One\n## One\n[x](#one)", "2 headings are meant by the link to #one"),
    "a comment of a shell": ("```sh\n# one\n```\n[x](#one)",
                             "no headings are meant by the link to #one"),
    "a key": ("`adress = kernel`", "there is no key adress"),
    "a key of the table": ("| key | default | |\n|---|---|---|\n| `colour` | red | |\n",
                           "there is no key colour"),
    "a variable": ("`HARP_TURBO=1`", "nothing reads HARP_TURBO"),
    "a value": ("`flows = 99`", "flows = '99' is not allowed; expected a whole number from 1 to "
                "16"),
    "a value in a block": ("```\nflows = 0\n```", "flows = '0' is not allowed; expected a whole "
                           "number from 1 to 16"),
    "a family": ("`harp_link_successes_total`", "no source has the name harp_link_successes_total"),
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


# Each: the page, what is changed in it, into what, and what has to be said then.
CHANGES: dict[str, tuple[Callable[[str], list[str]], str, str, str, str]] = {
    "a figure of the digest": (
        lambda text: digest_problems(text, read(FIGURES_PAGE)), "README.md",
        " 1.39 |", " 1.25 |", "`veth-1500`, sendrecv 1 MiB: other figures than in the whole table"),
    "a figure without its command": (
        lonely_figures, "docs/measure.md",
        "Short trials find the best number of sockets or flows", "HARP moved 9.0 GB/s.",
        "figures without their command: HARP moved 9.0 GB/s."),
    "a sentence that is said again": (
        lambda text: repeated([text, read("docs/operate.md")]), "README.md",
        "## Documents",
        "One exporter serves the metrics of all processes of a node, also of those in containers.",
        "said twice: One exporter serves the metrics of all processes of a node"),
    "a line that nobody says": (
        line_problems, "docs/operate.md",
        "host does not answer ARP:", "host is asleep:",
        "no source says \"the peer's host is asleep: are both NICs in one network?\""),
    "a counter": (
        counter_problems, "docs/operate.md",
        "| `poll_stalls` |", "| `breaks` |", "there is no counter breaks"),
    "a key that is missing": (
        configure_problems, "docs/configure.md",
        "| `cores` |", "| `peers` |", "the key cores is missing"),
    "a default": (
        configure_problems, "docs/configure.md",
        "| `rto_min_us` | 5000 |", "| `rto_min_us` | 1000 |", "rto_min_us: its default is 5000"),
    "a range": (
        configure_problems, "docs/configure.md",
        "1 to 16 |", "1 to 32 |", "flows: its range is 1 to 16"),
    "a key of the file alone": (
        configure_problems, "docs/configure.md",
        "`cores` and `tcp_ports`", "`cores`",
        "of the file alone are address, cores, device, gateway, gpu, mac, pci_path, tcp_ports"),
    "a variable that is missing": (
        configure_problems, "docs/configure.md",
        "| `HARP_DEBUG=1` |", "| `HARP_RUN_DIR` |", "the variable HARP_DEBUG is missing"),
    "a command that is missing": (
        commands_missing, "docs/operate.md",
        "| `harp nc` |", "| `harp cat` |", "harp nc is missing"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_page_is_seen(change: str) -> None:
    check, name, before, after, expected = CHANGES[change]
    text = read(name)
    assert before in text and check(text) == []
    assert [one for one in check(text.replace(before, after, 1)) if one.startswith(expected)]


def label_problems(text: str) -> list[str]:
    """A result over vhost, virtio_user or memif is no figure of a NIC: its section says so."""
    return [
        f"the section {section.splitlines()[0]} does not say that its link is shared memory"
        for section in re.split(r"^(?=#)", text, flags=re.MULTILINE)
        if SHARED_MEMORY.search(section) and "shared memory" not in section
    ]


@pytest.mark.parametrize("name", MEASURED)
def test_results_over_shared_memory_are_labelled(name: str) -> None:
    found = label_problems((ROOT / name).read_text())
    assert not found, "\n".join(found)


def test_missing_shared_memory_label_is_seen() -> None:
    text = "# One\nvhost, shared memory\n## Two\nvirtio_user: 3 GB/s\n"
    assert label_problems(text) == [
        "the section ## Two does not say that its link is shared memory"
    ]


def test_index_lists_every_decision() -> None:
    folder = ROOT / "docs/decisions"
    index = (folder / "README.md").read_text()
    for path in folder.glob("[0-9]*.md"):
        title = path.read_text().splitlines()[0]
        assert title.startswith(f"# {path.name[:4]} ")
        assert f"| [{path.name[:4]}]({path.name}) | {title[7:]} |" in index
