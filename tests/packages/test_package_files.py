# SPDX-License-Identifier: Apache-2.0
"""The files behind ./tools/package: units and maintainer scripts. Nothing is built."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from harp.cli import main as cli

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "tools/packages"
UNIT = (PACKAGES / "systemd/harp-setup.service").read_text()
COMMAND = re.compile(r"\bharp ([a-z]+)(?: ([a-z]+))?\b")


def command_problems(text: str) -> list[str]:
    """Commands of harp in a script or unit that do not exist."""
    found = []
    for name, word in COMMAND.findall(text):
        context = click.Context(cli.harp)
        command = cli.harp.get_command(context, name)
        if command is None:
            found.append(f"harp {name}")
        elif not isinstance(command, click.Group) or (command.invoke_without_command and not word):
            continue
        elif not command.get_command(context, word):
            found.append(f"harp {name} {word}")
    return found


def run_lines(text: str) -> str:
    """The lines of a unit or a script that run something."""
    return "\n".join(line for line in text.splitlines() if re.match(r"ExecStart=|\s+harp ", line))


@pytest.mark.parametrize(
    "name",
    [
        "systemd/harp-setup.service",
        "debian/harp-nccl.prerm",
        "harp.spec",
    ],
)
def test_packages_run_commands_that_exist(name: str) -> None:
    lines = run_lines((PACKAGES / name).read_text())
    assert lines and not command_problems(lines)


def test_command_that_is_not_there_is_detected() -> None:
    assert command_problems("ExecStart=/usr/bin/harp setup again") == ["harp setup again"]
    assert command_problems("ExecStart=/usr/bin/harp prepare") == ["harp prepare"]


def test_unit_runs_only_after_set_up() -> None:
    from harp.setup.journal import NAME

    assert f"ConditionPathExists=/usr/local/tfabric/tools/config/{NAME}\n" in UNIT


@pytest.mark.parametrize("script", [
    "deb", "rpm", "container", "emulate", "debian/harp-nccl.postinst", "debian/harp-nccl.prerm",
    "debian/harp-nccl.postrm",
    "../arm64", "../package",
])  # fmt: skip
def test_script_has_no_error_of_syntax(script: str) -> None:
    path = PACKAGES / script
    shell = path.read_text().splitlines()[0].removeprefix("#!")
    subprocess.run([shell, "-n", path], check=True)


def test_units_of_packages_run_the_installed_command(tmp_path: Path) -> None:
    script = f". {PACKAGES}/common; units {tmp_path}"
    subprocess.run(["bash", "-ec", script], check=True, cwd=ROOT)
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(texts) == {"harp-setup.service", "harp-agent.service", "harp-agent.socket",
                          "harp-exporter.service"}  # fmt: skip
    started = [line for text in texts.values() for line in re.findall("ExecStart=.*", text)]
    assert len(started) == 3
    assert all(line.startswith("ExecStart=/usr/bin/harp ") for line in started)
    assert not command_problems("\n".join(started))
    rules = (PACKAGES / "debian/rules").read_text()
    for name in {unit.partition(".")[0] for unit in texts}:
        (line,) = (line for line in rules.splitlines() if line.endswith(f"--name={name}"))
        assert ("--no-enable" in line) == (name != "harp-setup") and "--no-start" in line
    user = re.search(r"^User=(.*)$", texts["harp-agent.service"], re.MULTILINE)
    assert user and f"\nu {user[1]} " in (PACKAGES / "systemd/harp-agent.sysusers").read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_units_of_packages_are_correct(tmp_path: Path) -> None:
    script = f". {PACKAGES}/common; units {tmp_path}"
    subprocess.run(["bash", "-ec", script], check=True, cwd=ROOT)
    for unit in tmp_path.iterdir():
        unit.write_text(unit.read_text().replace("/usr/bin/harp", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *tmp_path.iterdir()],
        capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == 0 and "harp" not in done.stderr, done.stderr


# Runs postrm with folders of its own in place of the system's. $1: the script, $2: the user's text.
PURGE = """
mount -t tmpfs tmpfs /usr/local; mount -t tmpfs tmpfs /run
mkdir -p /usr/local/tfabric/tools/config /usr/local/tfabric/tools/run /run/harp
cd /usr/local/tfabric/tools
touch config/ztcp0.conf config/ztcp1.conf.edited run/01.stat run/02.trace run/03.new
touch run/04-0.capture
touch /run/harp/agent.sock
getent() { echo "harp:x:9:9:$name:/:/bin/sh"; }
userdel() { echo "userdel $*"; }
script=$1 name=$2
set -- purge
. "$script"
cd /usr/local; find . -type f; ls -A /run
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts folders: needs root")
@pytest.mark.parametrize(
    ("name", "gone"), [("HARP's agent", "userdel harp\n"), ("a person", "")], ids=["ours", "other"]
)
def test_purge_leaves_only_files_written_by_hand(name: str, gone: str) -> None:
    script = PACKAGES / "debian/harp-nccl.postrm"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", PURGE, "sh", script, name],
        capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{gone}./tfabric/tools/config/ztcp0.conf\n"


def test_release_of_package_is_that_of_wheel() -> None:
    """The packages read it from the name of the wheel."""
    script = f". {PACKAGES}/common; release"
    for name, wanted in (("0.1.0", "0.1.0"), ("0.2.0+nodpdk", "0.2.0+nodpdk")):
        said = subprocess.run(
            ["bash", "-c", f"basename() {{ echo harp_nccl-{name}-cp39-abi3-x.whl; }}; {script}"],
            capture_output=True, text=True, check=True)  # fmt: skip
        assert said.stdout.strip() == wanted


def test_missing_tools_are_named_before_the_build(tmp_path: Path) -> None:
    """The build takes minutes. All of them come in one message."""
    shutil.copytree(PACKAGES, tmp_path / "tools/packages")
    shutil.copy(ROOT / "tools/package", tmp_path / "tools/package")
    prepare = tmp_path / "tools/prepare"
    prepare.write_text("#!/bin/sh\ntouch prepared\nexit 1\n")
    prepare.chmod(0o755)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "sh", "dirname", "touch", "fakeroot"):
        (programs / name).symlink_to(shutil.which(name) or "/bin/true")
    done = subprocess.run(
        [tmp_path / "tools/package", "deb"],
        env={"PATH": str(programs)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and not (tmp_path / "prepared").exists()
    assert "apt-get install debhelper dh-python dpkg-dev lintian" in done.stderr
