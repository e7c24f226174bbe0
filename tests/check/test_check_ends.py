# SPDX-License-Identifier: Apache-2.0
"""However `harp check` ends, it leaves no file in the statistics folder."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harp import paths
from harp.check import launcher
from harp.check.progress import Progress
from harp.check.rendezvous import Rendezvous, RendezvousError
from harp.check.run import Check
from tools.hosts.ranks import END_S, START_S, Site, remove_wire, wait_until, wire_path, wire_site


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[list[Site]]:
    """Two ends of a wire."""
    wire = wire_path()
    yield [wire_site(tmp_path / str(number), wire, number) for number in (1, 2)]
    remove_wire(wire)


class Silent(Check):
    """A rank that falls silent before its links. The other one then waits for it, with its plugin
    in use."""

    def _links(self) -> None:
        raise RendezvousError("as intended")


class SilentRank:
    """Rank 1 of 2, in a thread of this process."""

    def __init__(self, rendezvous: str) -> None:
        self._rendezvous = Rendezvous(launcher.Place(1, 2, "unix", rendezvous))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._rendezvous.open(START_S, lambda _: None)
        with pytest.raises(RendezvousError):
            Silent(self._rendezvous, None, True, Progress(silent=True)).run()

    def close(self) -> None:
        self._thread.join(END_S)
        self._rendezvous.close()


def ended(process: subprocess.Popen[str]) -> str:
    """What the process says until it ends, with the status of a fault."""
    try:
        said, _ = process.communicate(timeout=START_S + END_S)  # it may have just begun
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1, said
    assert "Traceback" not in said
    return said


def start(site: Site, args: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *args],
        env=site.all_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=SLOW),
        pytest.param(signal.SIGHUP, marks=SLOW),
    ],
)
def test_interrupted_check_removes_its_statistics(
    sites: list[Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("HARP_CONF_DIR", str(sites[1].folder))
    rendezvous = str(tmp_path / "rendezvous")
    args = ["-m", "harp", "check", "--quick", "--rank", "0", "--ranks", "2"]
    process = start(sites[0], [*args, "--rendezvous", f"unix:{rendezvous}"])
    other = SilentRank(rendezvous)
    try:
        wait_until(lambda: bool(sites[0].published()), START_S, "rank 0 has no statistics", [])
        process.send_signal(number)
        assert f"rank 0: ended by {number.name}" in ended(process)
    finally:
        process.kill()
        other.close()
    assert not list(sites[0].run_folder.iterdir())


def test_interrupted_check_removes_its_socket(sites: list[Site], tmp_path: Path) -> None:
    rendezvous = tmp_path / "rendezvous"
    args = ["-m", "harp", "check", "--rank", "0", "--ranks", "2", "--wait", "3600"]
    process = start(sites[0], [*args, "--rendezvous", f"unix:{rendezvous}"])
    try:
        wait_until(rendezvous.exists, START_S, "rank 0 does not listen", [])
        process.send_signal(signal.SIGINT)
        ended(process)
    finally:
        process.kill()
    assert not rendezvous.exists()


DECLINES = """
import sys
from pathlib import Path
from harp.check.netplugin import Plugin, PluginError
try:
    Plugin(Path(sys.argv[1])).init()
except PluginError as why:
    sys.exit(f"declines: {why}")
"""


def test_plugin_that_declines_says_only_why(sites: list[Site]) -> None:
    """Its line goes on with what NCCL would do."""
    (sites[0].folder / "ztcp0.conf").unlink()
    said = ended(start(sites[0], ["-c", DECLINES, str(paths.nccl_plugin_path())]))
    assert "declines: HARP: no configuration" in said and "NCCL" not in said, said


# The time is over within a call of the plugin's user that does not return.
TOO_LONG = """
import sys, time
from pathlib import Path
from harp.check.netplugin import Plugin
from harp.cli.check import _end_in
Plugin(Path(sys.argv[1])).init()
print("statistics", len(list(Path(sys.argv[2]).glob("*.stat"))), flush=True)
_end_in(0.01, 0)
time.sleep(1000)
"""


def test_check_that_takes_too_long_removes_its_statistics(sites: list[Site]) -> None:
    site = sites[0]
    said = ended(start(site, ["-c", TOO_LONG, str(paths.nccl_plugin_path()), str(site.run_folder)]))
    assert "statistics 1" in said and "rank 0: not done within" in said
    assert not list(site.run_folder.iterdir())
