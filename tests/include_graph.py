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


def read(root: Path = ROOT) -> dict[str, str]:
    """The C files of the project without its tests, by their paths from the root."""
    paths = (path for top in FOLDERS for path in sorted((root / top).rglob("*.[ch]")))
    return {path.relative_to(root).as_posix(): path.read_text() for path in paths}


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


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan 1972), sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in list(graph):
        if node not in index:
            visit(node)
    return sorted(found)


def forbidden(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Circles that reach beyond one folder, and any within the stack."""
    return [
        circle
        for circle in circles(graph)
        if len({_folder(name) for name in circle}) > 1 or circle[0].startswith("harp/stack")
    ]


def _unit(path: str) -> str:
    return path.rsplit(".", 1)[0]


def _folder(unit: str) -> str:
    return str(PurePosixPath(unit).parent)


def main(words: list[str]) -> None:
    graph = units(read())
    if words:
        graph = {name: others for name, others in graph.items() if _folder(name) == words[0]}
    else:
        graph = folders(graph)
    for name in sorted(graph):
        print(name, "->", ", ".join(sorted(graph[name])) or "nothing")


if __name__ == "__main__":
    main(sys.argv[1:])
