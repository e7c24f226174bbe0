# SPDX-License-Identifier: Apache-2.0
"""Man pages: each command has one with all its options, and wheels hold them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

pytest.importorskip("mesonpy")
wheelfile = pytest.importorskip("wheel.wheelfile")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/packages"))

import backend  # noqa: E402
import man  # noqa: E402

from harp.cli.main import COMMANDS, harp  # noqa: E402


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return dict(man.pages("1.2"))


def options(command: click.Command) -> set[str]:
    """The long options of a command and its subcommands."""
    found = {
        name
        for one in command.params
        if isinstance(one, click.Option) and not one.hidden
        for name in one.opts
        if name.startswith("--")
    }
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner
            found |= options(inner)
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_page_of_command_has_all_options(name: str, pages: dict[str, str]) -> None:
    command = harp.get_command(click.Context(harp), name)
    assert command
    text = pages[f"harp-{name}.1"].replace("\\-", "-")
    assert [option for option in sorted(options(command)) if option not in text] == []
    assert f".BR harp\\-{name} (1)" in pages["harp.1"]


def test_page_of_program_has_what_the_program_prints(pages: dict[str, str]) -> None:
    assert "\\-l, \\-\\-listen" in pages["harp-nc.1"]


def test_package_in_current_folder_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "harp").mkdir()
    (tmp_path / "harp/__init__.py").write_text("raise SystemExit('the wrong package')\n")
    monkeypatch.chdir(tmp_path)
    command = harp.get_command(click.Context(harp), "nc")
    assert command
    page = man.page("harp-nc", command, "harp nc", "A netcat.", "1.2")
    assert "\\-l, \\-\\-listen" in page


def test_text_is_no_instruction_of_troff() -> None:
    assert man.escaped(".so /etc/passwd\n'x\na\\fB-b") == "\\&.so /etc/passwd\n\\&'x\na\\efB\\-b"


def test_troff_has_no_complaint(pages: dict[str, str]) -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff is missing")
    for name, text in pages.items():
        done = subprocess.run(
            [groff, "-man", "-Tutf8", "-ww", "-z"], input=text, capture_output=True, text=True,
            timeout=60)  # fmt: skip
        assert done.stderr == "", name


def test_pages_of_other_machines_wheel_come_from_this_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commands do not run here."""
    file = tmp_path / "harp_nccl-1.2-py3-none-any.whl"
    with wheelfile.WheelFile(file, "w") as wheel:
        wheel.writestr("harp/__init__.py", "raise SystemExit('this is for another machine')")
    monkeypatch.setenv("PYTHONPATH", "")
    backend._add_shared_files(file, runs_here=False)
    with wheelfile.WheelFile(file) as wheel:
        text = wheel.read("harp_nccl-1.2.data/data/share/man/man1/harp-nc.1").decode()
    assert '"HARP 1.2"' in text and "\\-l, \\-\\-listen" in text


def test_wheel_gets_shared_files_and_keeps_its_files(tmp_path: Path) -> None:
    file = tmp_path / "harp_nccl-1.2-py3-none-any.whl"
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    with wheelfile.WheelFile(file, "w") as wheel:
        wheel.write(program, "harp_x/program")
    backend._add_shared_files(file)
    with wheelfile.WheelFile(file) as wheel:
        assert wheel.getinfo("harp_x/program").external_attr >> 16 & 0o777 == 0o755
        text = wheel.read("harp_nccl-1.2.data/data/share/man/man1/harp.1").decode()
        record = wheel.read("harp_nccl-1.2.dist-info/RECORD").decode()
    assert '"HARP 1.2"' in text
    assert record.count("share/man/man1/") == len(COMMANDS) + 2
    for name in ("bash-completion/completions/harp,", "zsh/site-functions/_harp,"):
        assert f"harp_nccl-1.2.data/data/share/{name}" in record
    assert record.count("harp_x/program,") == 1
