# SPDX-License-Identifier: Apache-2.0
"""The verdict on a mutation matches its effect, tested on a tree of four lines."""

from __future__ import annotations

import pytest

pytest.importorskip("yaml")

import workbench  # noqa: E402
from mutations import Mutation  # noqa: E402
from workbench import BROKEN, CAUGHT, SURVIVED, Stopped, Workbench  # noqa: E402

SUM = "int sum(int a, int b) { return a + b; }"
PYTHON_SUM = "return a + b"
FILES = {
    "meson.build": "project('small', 'c')\nshared_library('small', 'small.c')\n",
    "small.c": f"int sum(int a, int b);\n{SUM}\n",
    "small.py": f"def sum(a, b):\n    {PYTHON_SUM}\n",
    "tests/test_small.py": """
import ctypes, os, pytest, small
small_c = ctypes.CDLL(os.environ["HARP_BUILD_DIR"] + "/libsmall.so")
def test_python(): assert small.sum(2, 3) == 5
def test_c(): assert small_c.sum(2, 3) == 5
def test_too_easy(): assert small_c.sum(0, 0) == 0
@pytest.mark.parametrize("b", [0, 3])
def test_several(b): assert small_c.sum(2, b) == 2 + b
def test_broken(): assert False
""",
}
C = "tests/test_small.py::test_c"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    root = tmp_path_factory.mktemp("small")
    (root / "tests").mkdir()
    for name, text in FILES.items():
        (root / name).write_text(text)
    made = Workbench(tmp_path_factory.mktemp("bench"), root)
    made.set_up()
    return made


def mutation(becomes: str, *tests: str, line: str = SUM, file: str = "small.c") -> Mutation:
    return Mutation(area="small", name="x", feature="sums", file=file, line=line, becomes=becomes,
                    caught_by=tests, why="")  # fmt: skip


def verdict(bench: Workbench, tried: Mutation, bound_s: float = 60) -> str:
    before = {path: path.read_text() for name in FILES for path in bench.tree.rglob(name)}
    said = bench.attempt(tried, bound_s)
    assert len(before) >= len(FILES)
    assert {path: path.read_text() for path in before} == before
    return said.what


def in_c(body: str) -> str:
    return f"int sum(int a, int b) {{ {body} }}"


WRONG = in_c("return a - b;")
SEVERAL, TOO_EASY = "tests/test_small.py::test_several", "tests/test_small.py::test_too_easy"
IN_PYTHON = mutation("return a - b", "tests/test_small.py::test_python", line=PYTHON_SUM,
                     file="small.py")  # fmt: skip


@pytest.mark.parametrize(("tried", "expected"), [
    pytest.param(mutation(WRONG, C, SEVERAL), CAUGHT, id="caught"),
    pytest.param(mutation(WRONG, C, TOO_EASY), SURVIVED, id="unnoticed by one"),
    pytest.param(mutation("int sum(int a, int b) {", C), BROKEN, id="no C"),
    pytest.param(mutation(in_c("__builtin_trap();"), C), CAUGHT, id="crash"),
    pytest.param(IN_PYTHON, CAUGHT, id="Python"),
])  # fmt: skip
def test_each_verdict_is_correct(bench: Workbench, tried: Mutation, expected: str) -> None:
    assert verdict(bench, tried) == expected


@pytest.mark.slow
def test_hanging_mutant_is_an_error(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbench, "GRACE_S", 1)  # Python takes no signal within the loop
    forever = in_c("for (volatile int i = 0;; i = 0) { if (i) { return a + b; } }")
    assert verdict(bench, mutation(forever, C), bound_s=3) == BROKEN


def test_broken_test_is_reported(bench: Workbench) -> None:
    broken = "tests/test_small.py::test_broken"
    assert set(bench.missing([C, broken])) == {broken}


def test_missing_line_is_an_error(bench: Workbench) -> None:
    assert verdict(bench, mutation(WRONG, C, line="int sum(int a);")) == BROKEN


def test_stopped_workbench_begins_no_attempt(bench: Workbench) -> None:
    other = Workbench(bench.tree.parent, bench.tree)
    other.stop()
    with pytest.raises(Stopped):
        other.attempt(mutation(WRONG, C))
    assert (bench.tree / "small.c").read_text() == FILES["small.c"]
