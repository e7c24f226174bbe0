# SPDX-License-Identifier: Apache-2.0
"""Hosts for tests of harp setup, each with its own folders."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_host import fake

from tools.hosts.lab import Host, Lab
from tools.hosts.lab_fixtures import lab

__all__ = ["fake", "host", "lab"]


class SetUpHost:
    """A host with its own configuration and run folders."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host = host
        self.tools = folder / "tools"
        self.conf = self.tools / "config"
        self.run_dir = self.tools / "run"
        self.environment = {"HARP_CONF_DIR": str(self.conf), "HARP_RUN_DIR": str(self.run_dir)}

    def harp(
        self,
        *args: str,
        code: int = 0,
        input: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs harp on the host and checks its exit status."""
        done = self.host.run(
            [sys.executable, "-m", "harp", *args], self.environment, check=False, input=input
        )
        assert done.returncode == code, (
            f"harp {args}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        assert "Traceback" not in done.stderr
        return done

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Starts harp on the host. Its stdout has what it says."""
        return self.host.popen(
            [sys.executable, "-m", "harp", *args],
            self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    @contextmanager
    def crashing(self) -> Iterator[Callable[..., tuple[int, str]]]:
        """Starts crashing.py on the host. Gives its function run, with args."""
        path = Path(__file__).with_name("crashing.py")
        runs = self.host.popen(
            [sys.executable, path],
            self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

        def run(change: int, *args: str) -> tuple[int, str]:
            assert runs.stdin and runs.stdout
            print(json.dumps([change, *args]), file=runs.stdin, flush=True)
            status, said = json.loads(runs.stdout.readline())
            return status, said

        with runs:  # closes its input at the end, and waits for it
            yield run

    def state(self) -> dict[str, Any]:
        """All state that set-up may change: routes and files."""
        routes = self.host.run(["ip", "route"]).stdout
        return {
            "routes": routes.replace(" linkdown", ""),  # a new NIC is up a moment later
            "files": {
                str(path): path.read_text() if path.is_file() else ""
                for path in sorted(self.tools.parent.rglob("*"))
            },
        }


@pytest.fixture
def host(lab: Lab, tmp_path: Path) -> SetUpHost:
    return SetUpHost(lab.hosts[1], tmp_path)
