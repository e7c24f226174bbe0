# SPDX-License-Identifier: Apache-2.0
"""Calls go down: plugin -> engine -> stack, and engine -> ports. The includes show it.

The stack may use the C library's arithmetic and memory, never its clocks,
threads or sockets; that is checked twice, by what it includes and by what the
archive asks the linker for.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import include_graph
import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("HARP_BUILD_DIR") or ROOT / "build")

NEUTRAL = (
    "harp/frame.h",
    "harp/headers.h",
    "harp/fnv1a.h",
    "harp/time_units.h",
    "harp/counters.h",
    "harp/counters.def",
    "harp/counter_aliases.def",
)

STACK_SYSTEM = frozenset(
    """arm_neon.h assert.h endian.h errno.h immintrin.h limits.h netinet/in.h netinet/tcp.h poll.h
    sanitizer/asan_interface.h stdalign.h stdbool.h stddef.h stdint.h stdlib.h string.h
    sys/ioctl.h sys/socket.h sys/types.h sys/uio.h""".split()  # the sanitizer's: in its build alone
)

# What the archive may ask of the C library: memory at creation and
# destruction, and copying. Everything else is a clock, a lock or a log.
STACK_SYMBOLS = frozenset(
    """malloc calloc aligned_alloc posix_memalign free memcpy memmove memset memcmp strcmp strlen
    strncmp __assert_fail abort __stack_chk_fail _GLOBAL_OFFSET_TABLE_ __memcpy_chk __memset_chk
    __memmove_chk __cpu_model""".split()  # the last: libgcc's, which instructions there are
)


@dataclass(frozen=True)
class Layer:
    """Which files it is, which of the project's headers they may name, which system headers."""

    files: tuple[str, ...]
    ours: tuple[str, ...]
    system: frozenset[str] | None = None  # None: any


# The first layer that a file matches is its own.
LAYERS = {
    # Sockets are one owner of flows among others, so they know no more than the plugin.
    "sockets": Layer(
        ("harp/stack/socket/*",),
        ("harp/stack.h", "harp/stack/flow.h", "harp/stack/bytes.h", "harp/stack/socket/*"),
        STACK_SYSTEM,
    ),
    "stack": Layer(
        ("harp/stack.h", "harp/stack/*"),
        ("harp/stack.h", "harp/stack/*", *NEUTRAL),
        STACK_SYSTEM,
    ),
    "neutral": Layer(NEUTRAL + ("harp/counters.c",), NEUTRAL, STACK_SYSTEM),
    "engine": Layer(
        ("harp/engine/*",),
        ("harp/engine/*", "harp/stack.h", "harp/stack/*", "dpdk_glue/*", *NEUTRAL),
    ),
    # The checksum is arithmetic: a port that copies payload also sums it.
    "ports": Layer(("dpdk_glue/*",), ("dpdk_glue/*", "harp/stack/ip/checksum.h", *NEUTRAL)),
    "kernel plugin": Layer(
        ("harp/bench/kernel/*",),
        ("harp/bench/kernel/*", "plugin/net.h", "plugin/contexts.h", "plugin/nccl/*"),
    ),
    "plugin": Layer(
        ("plugin/*",),
        ("plugin/*", "harp/engine/*", "harp/stack/flow.h", "harp/counters.h", "harp/fnv1a.h",
         "harp/time_units.h"),
    ),
    "agent": Layer(("harp/agent/*",), ("harp/agent/*", "dpdk_glue/*")),
    "glibc floor": Layer(("harp/glibc_floor*",), ()),
    "numbers": Layer(("harp/parse_number.h",), ()),
    "nc": Layer(
        ("harp/nc/*",),
        (
            "harp/nc/*",
            "harp/engine/*",
            "harp/stack.h",
            "harp/stack/flow.h",
            "harp/parse_number.h",
            "harp/time_units.h",
        ),
    ),
    # The measuring program loads any plugin; of ours it knows NCCL's types only.
    "bench": Layer(
        ("harp/bench/*",),
        ("harp/bench/*", "plugin/nccl/nccl_types.h", "harp/parse_number.h"),
    ),
    # Collectives take NCCL's place, too.
    "collectives": Layer(
        ("harp/collectives/*",),
        ("harp/collectives/*", "harp/bench/netapi.h", "harp/bench/clock.h", "harp/fnv1a.h"),
    ),
    "measure": Layer(("tools/measure/*",), ("harp/stack.h", "harp/stack/flow.h", *NEUTRAL)),
    "forwarder": Layer(("tools/attacker/forwarder.*",), ("tools/attacker/*", "dpdk_glue/port.h")),
    "attacker": Layer(
        ("tools/attacker/*",),
        ("tools/attacker/*", "harp/headers.h", "harp/stack/ip/checksum.h"),
    ),
    "relay": Layer(("tools/relay/*",), ("tools/relay/*",)),
    "tests": Layer(("tests/*",), ("*",)),
}  # fmt: skip

INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*(\S.*?)[ \t]*(?:/[*/].*)?$", re.MULTILINE)


def sources() -> dict[str, str]:
    """Every C file of the checkout, its tests included, by its path from the root."""
    return include_graph.read((*include_graph.FOLDERS, "tests"))


def layer_of(path: str) -> tuple[str, Layer] | None:
    for name, layer in LAYERS.items():
        if any(fnmatch(path, pattern) for pattern in layer.files):
            return name, layer
    return None


def violations(tree: Mapping[str, str]) -> list[str]:
    """One line for each include that breaks a rule, in the order of the paths."""
    found = []
    for path in sorted(tree):
        home = layer_of(path)
        if home is None:
            found.append(f"{path}: belongs to no layer; give it one in tests/test_layers.py")
            continue
        for match in INCLUDE.finditer(tree[path]):
            line = tree[path].count("\n", 0, match.start()) + 1
            problem = _problem(home[0], home[1], match[1], tree)
            if problem:
                found.append(f"{path}:{line}: {problem}")
    return found


def _problem(name: str, layer: Layer, what: str, tree: Mapping[str, str]) -> str | None:
    quoted = re.fullmatch(r'"([^"]+)"', what)
    system = re.fullmatch(r"<([^>]+)>", what)
    if system:
        if layer.system is not None and system[1] not in layer.system:
            return f"the {name} may not include <{system[1]}>"
        return None
    if not quoted:
        return f"include {what} names no file"
    if quoted[1] not in tree:
        return f'"{quoted[1]}" is no file; write the path from the root of the checkout'
    if not any(fnmatch(quoted[1], pattern) for pattern in layer.ours):
        return f'an arrow against the layers: the {name} may not include "{quoted[1]}"'
    return None


def test_every_include_points_down() -> None:
    tree = sources()
    assert "harp/stack.h" in tree
    found = violations(tree)
    assert not found, "\n".join(found)


FAULTS = {
    "stack names engine": ("harp/stack/x.c", '#include "harp/engine/x.h"'),
    "stack names port": ("harp/stack/x.c", '#include "dpdk_glue/port.h"'),
    "stack reads a clock": ("harp/stack/x.c", "# include <time.h>"),
    "stack locks": ("harp/stack/x.h", "#include <pthread.h>"),
    "stack logs": ("harp/stack/x.c", "#include <stdio.h>  /* printf */"),
    "sockets name TCP's inside": ("harp/stack/socket/x.c", '#include "harp/stack/tcp/tcp.h"'),
    "sockets lock": ("harp/stack/socket/x.c", "#include <pthread.h>"),
    "port names stack": ("dpdk_glue/x.c", '#include "harp/stack/tcp/tcp.h"'),
    "port names engine": ("dpdk_glue/x.c", '#include "harp/engine/x.h"'),
    "engine names plugin": ("harp/engine/x.c", '#include "plugin/net.h"'),
    "plugin names port": ("plugin/x.c", '#include "dpdk_glue/port.h"'),
    "plugin names packets": ("plugin/x.c", '#include "harp/frame.h"'),
    "plugin names stack's inside": ("plugin/x.c", '#include "harp/stack/tcp/tcp.h"'),
    "kernel plugin names engine": ("harp/bench/kernel/x.c", '#include "harp/engine/x.h"'),
    "collectives name engine": ("harp/collectives/x.c", '#include "harp/engine/x.h"'),
    "collectives name links": ("harp/collectives/x.c", '#include "plugin/net.h"'),
    "measuring names plugin": ("harp/bench/x.c", '#include "plugin/net.h"'),
    "path not from the root": ("harp/stack/x.c", '#include "tcp.h"'),
    "computed include": ("harp/stack/x.c", "#include HEADER"),
    "file without a layer": ("harp/x.c", ""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fault: str) -> None:
    headers = ("harp/engine/x.h", "harp/stack/tcp/tcp.h", "harp/frame.h", "dpdk_glue/port.h",
               "plugin/net.h")  # fmt: skip
    tree = dict.fromkeys(headers, "")
    assert violations(tree) == []
    path, text = FAULTS[fault]
    tree[path] = "int before;\n" + text + "\n"
    assert len(violations(tree)) == 1


POKE = re.compile(r"\binstances?(?:\[[^]]*\])?->")


def test_plugin_uses_the_interface_of_instances() -> None:
    """The fields of struct harp_instance are the engine's; the plugin calls harp_instance_*."""
    tree = {path: text for path, text in sources().items() if path.startswith("plugin/")}
    found = [
        f"{path}:{number}"
        for path, text in tree.items()
        for number, line in enumerate(text.splitlines(), 1)
        if POKE.search(line)
    ]
    assert "plugin/link/link_flow.c" in tree and not found, found
    assert POKE.search("flow->instance->now") and POKE.search("engine->instances[0]->counters")


WINDOW_WRITERS = ("harp/stack/tcp/tcp_cwnd.c", "harp/stack/tcp/tcp_cwnd.h")
WINDOW_CHANGE = re.compile(r"->(?:cwnd|ssthresh)\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)")


def test_one_file_changes_the_congestion_window() -> None:
    """Other files of the stack call the functions of tcp_cwnd.h."""
    writers = {
        path
        for path, text in sources().items()
        if path.startswith("harp/") and WINDOW_CHANGE.search(text)
    }
    assert writers == set(WINDOW_WRITERS)


@pytest.mark.parametrize(
    "line, changes",
    [
        ("tcp->cwnd = 1;", True),
        ("tcp->cwnd\n    += 1;", True),
        ("tcp->ssthresh <<= 1;", True),
        ("tcp->cwnd--;", True),
        ("if (tcp->cwnd == 1 || tcp->cwnd <= tcp->ssthresh)", False),
        ("tcp->undo.cwnd = 1;", False),
        ("tcp->cwnd_limited = true;", False),
    ],
)
def test_change_of_the_congestion_window_is_seen(line: str, changes: bool) -> None:
    assert bool(WINDOW_CHANGE.search(line)) == changes


def test_no_circle_of_includes() -> None:
    """The graph is printed, too (pytest -s): a newcomer reads the layers off it."""
    graph = include_graph.units(include_graph.read())
    include_graph.main([])
    assert graph["harp/stack/tcp/tcp_input"], "no includes were found"
    assert not include_graph.circular(graph)


CIRCLES = {
    "two folders": {"a/x.c": '#include "b/y.h"', "b/y.c": '#include "a/x.h"'},
    "by way of a third": {
        "a/x.h": '#include "b/y.h"',
        "b/y.c": '#include "c/z.h"',
        "c/z.h": '#include "a/x.h"',
    },
    "in the stack": {
        "harp/stack/x.c": '#include "harp/stack/y.h"',
        "harp/stack/y.c": '#include "harp/stack/x.h"',
    },
}


@pytest.mark.parametrize("name", CIRCLES)
def test_circle_of_includes_is_seen(name: str) -> None:
    """Each of its includes lies on the circle."""
    found = include_graph.circular(include_graph.units(CIRCLES[name]))
    assert len(found) == len(CIRCLES[name])


def test_circle_within_one_folder_is_allowed() -> None:
    tree = {"a/x.c": '#include "a/y.h"', "a/y.c": '#include "a/x.h"'}
    graph = include_graph.units(tree)
    assert "a/x" in include_graph.reached(graph, "a/y") and not include_graph.circular(graph)


def undefined_symbols(*files: Path) -> set[str]:
    """What the objects (or members of archives) ask for and none of them defines."""
    wanted: set[str] = set()
    defined: set[str] = set()
    listing = subprocess.run(
        ["nm", "--extern-only", "--format=posix", *map(str, files)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for line in listing.splitlines():
        fields = line.split()
        if len(fields) >= 2 and len(fields[1]) == 1:
            (wanted if fields[1] in "Uw" else defined).add(fields[0])
    return wanted - defined


def test_stack_calls_no_system_functions() -> None:
    archive = BUILD / "harp/stack/libharp_stack.a"
    if not archive.exists():
        pytest.skip(f"{archive} is not built: meson setup build && meson compile -C build")
    asked = undefined_symbols(archive)
    if any(name.startswith(("__asan", "__ubsan")) for name in asked):
        pytest.skip("a build with sanitizers asks for their run time")
    extra = asked - STACK_SYMBOLS
    assert not extra, f"{archive} calls {sorted(extra)}"


def test_system_call_is_detected(tmp_path: Path) -> None:
    source, made = tmp_path / "x.c", tmp_path / "x.o"
    source.write_text("#include <time.h>\nlong when(void) { return time(0); }\n")
    subprocess.run(["cc", "-c", "-o", str(made), str(source)], check=True)
    assert undefined_symbols(made) - STACK_SYMBOLS == {"time"}
