# SPDX-License-Identifier: Apache-2.0
"""Two hosts, gpu1 and gpu2, as the recipes have them: each has a name, an address of that name, a
configuration, and the programs harp, harprun, and an ssh to the other host."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from tools.hosts.lab import Lab

ROOT = Path(__file__).resolve().parents[1]
BUILD = os.environ.get("HARP_BUILD_DIR") or str(ROOT / "build")
LAUNCHERS = {
    "torchrun": "torch.distributed.run",
    "deepspeed": "deepspeed.launcher.runner",
    "ray": "ray.scripts.scripts",
}
LONGEST_S = 60.0
NOTHING: Mapping[str, str] = MappingProxyType({})

# Gives a process its host's name, the table of names, and /opt/harp. ip netns exec has made a mount
# namespace, so the machine sees none of it. The variables stand for the default folders of a host.
_ENTER = """
mount --bind "$1" /etc/hosts; hostname "$2"
mount -t tmpfs none /opt; ln -s "$3" /opt/harp
export HARP_CONF_DIR="$3/$2/config" HARP_RUN_DIR="$3/$2/run"
shift 3; exec "$@"
"""

# As sshd starts a command: by a shell, with none of the caller's variables.
_SSH = """\
while [ "${{1#-}}" != "$1" ]; do
  case "$1" in -o | -p | -l | -i) shift ;; esac
  shift
done
host=${{1#*@}}
shift
exec env -i PATH="{path}" PYTHONPATH="{root}" HOME="$HOME" TMPDIR="$TMPDIR" \\
  "{bin}/on-$host" sh -c "$*"
"""


def finish(running: Sequence[subprocess.Popen[str]], timeout: float, fails: bool = False) -> str:
    """Waits for programs of Cluster.start, and returns their output, one after the other. Raises
    AssertionError with it if a program fails or takes longer than `timeout` seconds. Ends the
    programs in any case. fails: they have to fail."""
    limit = time.monotonic() + timeout
    said = ""
    try:
        for process in running:
            said += process.communicate(timeout=max(1.0, limit - time.monotonic()))[0]
    except subprocess.TimeoutExpired as late:
        output = (late.output or b"").decode(errors="replace")
        raise AssertionError(
            f"{said}{output}\n{shlex.join(map(str, process.args))} ran past {timeout} s"
        ) from None
    finally:
        for process in running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
    assert all(bool(process.returncode) == fails for process in running), said
    return said


class Cluster:
    """The hosts of a lab with two hosts. `folder` gets their files."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.hosts = {f"gpu{host.index + 1}": host for host in lab.hosts}
        self.folder = folder
        self.bin = folder / "bin"
        self.work = folder / "work"
        for path in (self.bin, self.work):
            path.mkdir()
        for name in ("train.py", "train_cpu.py"):
            (self.work / name).symlink_to(ROOT / "tests/recipes" / name)
        names = "".join(f"{host.address} {name}\n" for name, host in self.hosts.items())
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        for name, host in self.hosts.items():
            home = folder / name
            (home / "config").mkdir(parents=True)
            (home / "run").mkdir()
            (home / "config/ztcp0.conf").write_text(f"device = packet:{host.interface}\n")
            self._script(f"on-{name}", f'exec {shlex.join(self.enter(name))} "$@"\n')
        for program, function in (("harp", "main"), ("harprun", "run_main")):
            self._write_harp(program, function)
        # These packages need not be installed in this environment's folder of programs.
        python = shlex.quote(sys.executable)
        for program, module in LAUNCHERS.items():
            self._script(program, f'exec {python} -m {module} "$@"\n')
        self._script("ssh", _SSH.format(path=self.path(), bin=self.bin, root=ROOT))

    def _script(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)

    def _write_harp(self, program: str, function: str) -> None:
        """A program of this checkout with the configuration of the host that runs it."""
        start = f"from harp.cli import main; main.{function}()"
        self._script(
            program,
            f"home={shlex.quote(str(self.folder))}/$(hostname)\n"
            f'export HARP_CONF_DIR="$home/config" HARP_RUN_DIR="$home/run"\n'
            f"export HARP_BUILD_DIR={shlex.quote(BUILD)} PYTHONPATH={shlex.quote(str(ROOT))}\n"
            f'exec {shlex.quote(sys.executable)} -c {shlex.quote(start)} "$@"\n',
        )

    def path(self) -> str:
        return f"{self.bin}:{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"

    def enter(self, name: str) -> list[str]:
        """The arguments in front of a command that runs on a host."""
        script = ["unshare", "--uts", "sh", "-ec", _ENTER, "enter", self.folder / "hosts"]
        return self.hosts[name].command([*script, name, self.folder])

    def environment(self) -> dict[str, str]:
        """Of a login shell, but that root may start Open MPI's jobs."""
        return {
            "PATH": self.path(),
            "PYTHONPATH": str(ROOT),
            "HARP_BUILD_DIR": BUILD,
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }

    def start(
        self,
        name: str,
        args: Sequence[str],
        more: Mapping[str, str] = NOTHING,
        output: int = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Starts a program on a host, in a process group of its own. Its errors are in its output.
        more: added to the environment."""
        return subprocess.Popen(
            [*self.enter(name), *args],
            env={**self.environment(), **more},
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",  # a capture
            start_new_session=True,
        )

    def run(
        self,
        names: Sequence[str],
        args: Sequence[str],
        more: Mapping[str, str] = NOTHING,
        timeout: float = LONGEST_S,
    ) -> str:
        """Runs a program on some hosts at once, and finishes it."""
        return finish([self.start(name, args, more) for name in names], timeout)


@contextmanager
def new_cluster(lab: Lab) -> Iterator[Cluster]:
    """The two hosts, with new folders that every user may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="harp-recipes-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield Cluster(lab, folder)
