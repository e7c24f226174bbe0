# SPDX-License-Identifier: Apache-2.0
"""The graph of includes. A unit is a C file with its header; an edge says that it includes another.

`python tests/include_graph.py [FOLDER]` prints the graph of folders, or of one folder's units.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("dpdk_glue", "harp", "plugin", "tools")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
Graph = dict[str, set[str]]


def read(folders: Iterable[str] = FOLDERS) -> dict[str, str]:
    """Every C file below these folders, by its path from the root of the checkout."""
    paths = (path for top in folders for path in sorted((ROOT / top).rglob("*")))
    return {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for path in paths
        if path.suffix in (".c", ".h", ".def") and path.is_file()
    }


def units(tree: Mapping[str, str]) -> Graph:
    """Each unit and the units that it includes."""
    graph: Graph = {}
    for path, text in tree.items():
        name = _unit(path)
        graph.setdefault(name, set()).update(_unit(found) for found in INCLUDE.findall(text))
    for name, others in graph.items():
        others.discard(name)
    return graph


def folders(graph: Mapping[str, Iterable[str]]) -> Graph:
    """The same of folders."""
    found: Graph = {}
    for name, others in graph.items():
        home = _folder(name)
        found.setdefault(home, set()).update(_folder(one) for one in others if _folder(one) != home)
    return found


def circular(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """The edges that lie on a circle beyond one folder, or on any circle within the stack."""
    found = []
    for name, others in graph.items():
        for other in others:
            bound = name.startswith("harp/stack/") or _folder(name) != _folder(other)
            if bound and name in reached(graph, other):
                found.append(f"{name} -> {other}")
    return sorted(found)


def reached(graph: Mapping[str, Iterable[str]], start: str) -> set[str]:
    """A unit and all that it includes, directly or not."""
    found, waiting = set(), [start]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph.get(name, ())
    return found


def _unit(path: str) -> str:
    return path.rsplit(".", 1)[0]


def _folder(unit: str) -> str:
    return str(PurePosixPath(unit).parent)


def main(args: list[str]) -> None:
    graph = units(read())
    if args:
        graph = {name: others for name, others in graph.items() if _folder(name) == args[0]}
    else:
        graph = folders(graph)
    for name in sorted(graph):
        print(name, "->", ", ".join(sorted(graph[name])) or "nothing")


if __name__ == "__main__":
    main(sys.argv[1:])
