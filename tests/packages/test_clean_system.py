# SPDX-License-Identifier: Apache-2.0
"""From installation to removal, nothing is left.

The long form installs the Debian package, or the wheel, on two fresh systems:

    HARP_TEST_FULL=1 pytest tests/packages/test_clean_system.py

It needs debootstrap and the packages of ./tools/package deb, and takes minutes. HARP_TEST_SUITES
names other suites, separated by spaces; SUITE@MIRROR is one of another distribution. The short form
installs this build into a folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clean_system import SYSTEMS, CleanHost, difference, make_system, run, snapshot, two_hosts
from made_packages import newest

from harp.setup.folders import FolderError
from tools.hosts.lab import Lab
from tools.hosts.lab_fixtures import lab

__all__ = ["lab"]

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("HARP_BUILD_DIR") or ROOT / "build")
FULL = os.environ.get("HARP_TEST_FULL")
SUITES = (os.environ.get("HARP_TEST_SUITES") or "bookworm").split()

# pip removes the folder of commands when it is empty, and keeps empty folders below share/.
OF_PIP = {"gone: usr/local/bin", "new: usr/local/share/bash-completion",
          "new: usr/local/share/fish", "new: usr/local/share/zsh"}  # fmt: skip

PERF = ("perf", "sendrecv", "-b", "64K", "-e", "64K", "-n", "20", "--nranks", "2",
        "--rendezvous", "10.77.0.1:5000")  # fmt: skip


def wait_for_all(ranks: list[Any]) -> list[str]:
    """The output of each rank. Ends all of them if one fails."""
    try:
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
    finally:
        for rank in ranks:
            rank.kill()
    return outputs


# -- the short form


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that stands for site-packages."""
    meson = shutil.which("meson")
    if meson is None:
        pytest.skip("meson is not on the PATH")
    place = tmp_path_factory.mktemp("site")
    subprocess.run(
        [meson, "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", place], check=True
    )
    (package,) = (path.parent for path in place.rglob("harp/__init__.py"))
    return package.parent


@pytest.mark.quick_cases(1)
def test_setup_job_and_undo_leave_nothing(site: Path, lab: Lab, tmp_path: Path) -> None:
    harp = [sys.executable, "-I", "-c", "import sys; sys.path.insert(0, sys.argv.pop(1)); "
            "from harp.cli.main import main; main()", str(site)]  # fmt: skip
    folders = [tmp_path / f"host{i}" for i in range(2)]
    environments = []
    for folder in folders:
        folder.mkdir()
        environments.append({"HARP_CONF_DIR": str(folder / "tools/config"),
                             "HARP_RUN_DIR": str(folder / "tools/run")})  # fmt: skip
    for host, environment in zip(lab.hosts, environments):
        said = host.run([*harp, "setup", "--yes", "--device", "packet:eth0"], environment).stdout
        assert "Set up HARP successfully" in said
    ranks = [
        host.popen([*harp, *PERF, "--rank", str(i)], environments[i], stdout=subprocess.PIPE,
                   stderr=subprocess.STDOUT, text=True)
        for i, host in enumerate(lab.hosts)
    ]  # fmt: skip
    assert any("65536" in output for output in wait_for_all(ranks))
    for host, environment in zip(lab.hosts, environments):
        host.run([*harp, "setup", "undo"], environment)
    assert [list(folder.iterdir()) for folder in folders] == [[], []]


def test_difference_names_what_is_left(tmp_path: Path) -> None:
    for name in ("kept", "changed", "gone"):
        (tmp_path / name).write_text(name)
    before = snapshot(tmp_path)
    (tmp_path / "changed").write_text("otherwise")
    (tmp_path / "gone").unlink()
    (tmp_path / "new").mkdir()
    (tmp_path / "var/log").mkdir(parents=True)
    (tmp_path / "var/log/dpkg.log").touch()
    found = difference(before, snapshot(tmp_path))
    assert found == ["changed: changed", "gone: gone", "new: new", "new: var", "new: var/log"]


# -- the long form


def both(hosts: tuple[CleanHost, CleanHost], *args: str) -> list[str]:
    """What a command prints as rank 0 on the first host, and as rank 1 on the other."""
    return wait_for_all([
        subprocess.Popen(host.args(*args, "--rank", str(i)), text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT)
        for i, host in enumerate(hosts)
    ])  # fmt: skip


def do_job(hosts: tuple[CleanHost, CleanHost]) -> None:
    """Set-up, checks and a job."""
    for host in hosts:
        assert "DPDK 22.11" in host.run("harp", "--version")
        assert host.run("harp", "setup", "restore") == "  nothing to change\n"
        host.run("harp", "setup", "--yes", "--device", "packet:eth0")
        host.run("harp", "doctor")
    both(hosts, "harp", "check", "--ranks", "2", "--rendezvous", "10.77.0.1:5000")
    assert any("65536" in output for output in both(hosts, "harp", *PERF))


def copied(file: Path, host: CleanHost) -> str:
    """The path of a copy on a host."""
    shutil.copy(file, host.root / "tmp")
    return f"/tmp/{file.name}"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder away: needs root")
def test_systems_of_another_user_are_refused(tmp_path: Path) -> None:
    """Root would run the programs in them."""
    os.chown(tmp_path, 12345, -1)
    tmp_path.chmod(0o1777)
    (tmp_path / "systems").mkdir()
    os.chown(tmp_path / "systems", 12345, -1)
    with pytest.raises(FolderError, match="12345"):
        make_system("bookworm", tmp_path / "systems")


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="needs debootstrap and minutes; HARP_TEST_FULL=1")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("suite", SUITES)
def test_package_leaves_clean_system_as_it_was(suite: str, tmp_path: Path) -> None:
    system = make_system(suite, SYSTEMS)
    with two_hosts(system, tmp_path) as hosts:
        before = [snapshot(host.root) for host in hosts]
        for host in hosts:
            file = copied(newest("harp-nccl_*.deb"), host)
            host.run("apt-get", "-y", "--no-install-recommends", "install", file)
            host.run("rm", file)
        do_job(hosts)
        hosts[0].run("harp", "setup", "undo")
        # Removal undoes the other host's set-up.
        for host in hosts:
            host.run("apt-get", "-y", "purge", "harp-nccl")
        left = [difference(*pair) for pair in zip(before, [snapshot(host.root) for host in hosts])]
    assert left == [[], []]


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="needs debootstrap and minutes; HARP_TEST_FULL=1")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("suite", SUITES)
def test_wheel_leaves_clean_system_as_it_was(suite: str, tmp_path: Path) -> None:
    system = make_system(suite, SYSTEMS)
    with two_hosts(system, tmp_path) as hosts:
        before = []
        for host in hosts:
            before.append(snapshot(host.root))
            file = copied(newest("harp_nccl-*.whl"), host)
            # The system's click suffices, so pip needs no index.
            host.run("pip", "install", "--break-system-packages", "--no-index", file)
            host.run("rm", file)
            assert (host.root / "usr/local/share/bash-completion/completions/harp").is_file()
            assert (host.root / "usr/local/share/man/man1/harp-perf.1").is_file()
        do_job(hosts)
        for host in hosts:
            host.run("harp", "setup", "undo")
            host.run("pip", "uninstall", "--break-system-packages", "-y", "harp-nccl")
        left = [difference(*pair) for pair in zip(before, [snapshot(host.root) for host in hosts])]
    assert [set(one) - OF_PIP for one in left] == [set(), set()]


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="needs debootstrap and minutes; HARP_TEST_FULL=1")
@pytest.mark.skipif(shutil.which("rpm") is None, reason="rpm is missing: apt-get install rpm")
@pytest.mark.timeout(3600)
def test_rpm_leaves_system_as_it_was(tmp_path: Path) -> None:
    """On a system of another family: rpm finds none of the packages that this one depends on. Its
    scripts, commands and files are the same there."""
    system = make_system("bookworm", SYSTEMS)
    with two_hosts(system, tmp_path) as (host, _):
        rpm = ["rpm", "--root", str(host.root)]
        run(*rpm, "--initdb")
        before = snapshot(host.root)
        run(*rpm, "--nodeps", "-i", newest("harp-nccl-*.rpm"))
        run(*rpm, "--nodeps", "-V", "harp-nccl")
        assert "DPDK 22.11" in host.run("harp", "--version")
        host.run("harp", "setup", "--yes", "--device", "packet:eth0")
        run(*rpm, "--nodeps", "-U", "--force", newest("harp-nccl-*.rpm"))
        assert "ztcp0.conf" in host.run("harp", "setup", "status")
        assert "removed" in host.run("harp", "setup", "undo")
        run(*rpm, "--nodeps", "-e", "harp-nccl")
        left = set(difference(before, snapshot(host.root)))
    # On systems of its family, these folders belong to rpm and systemd.
    assert left - {"new: usr/share/licenses", "new: usr/lib/sysusers.d"} == set()


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="needs debootstrap and minutes; HARP_TEST_FULL=1")
@pytest.mark.timeout(3600)
def test_pip_on_clean_system_names_all_packages(tmp_path: Path) -> None:
    system = make_system("bookworm", SYSTEMS)
    with two_hosts(system, tmp_path) as hosts:
        source = hosts[0].root / "source"
        shutil.copytree(ROOT / "tools/packages", source)
        said = hosts[0].run(
            "python3", "-B", "-c", "import sys; sys.path.insert(0, '/source'); import build_needs; "
            "print(build_needs.complaint(list(build_needs.missing())))")  # fmt: skip
    assert ("apt-get install gcc libc6-dev pkg-config python3-dev libsodium-dev libdpdk-dev clang\n"
            in said)  # fmt: skip
