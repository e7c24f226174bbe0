# SPDX-License-Identifier: Apache-2.0
"""A job of `harp check`: some ranks on each host of a lab."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from tools.hosts.lab import Host, Lab


@dataclass
class Result:
    """`codes` and `said` (standard error) are by rank; a rank that was not started has None."""

    codes: list[Optional[int]]
    said: list[str]
    report: dict[str, Any]
    text: str

    def texts(self, level: str = "fault") -> list[str]:
        """The findings of a level, with what they are about."""
        found = self.report["findings"]
        return [f"{one['about']}: {one['text']}" for one in found if one["level"] == level]

    def faults_about(self, about: str) -> list[str]:
        """The faults about one thing."""
        return [text for text in self.texts() if text.startswith(f"{about}: ")]

    def unmeasured(self) -> list[tuple[str, int, int]]:
        """The pairs of ranks without a number, with the name of the matrix that lacks it."""
        return [
            (name, source, target)
            for name in ("alone_gbit", "together_gbit", "round_trip_us")
            for source, row in enumerate(self.report[name])
            for target, value in enumerate(row)
            if not value and source != target
        ]

    def phases(self) -> dict[str, float]:
        """When each phase has begun, in seconds since rank 0 began to wait for the others. The
        phase `end` is the end of the last one."""
        found: dict[str, float] = {}
        for moment, name in re.findall(r"^harp check: +([\d.]+) s: ([^,\n]+)", self.said[0], re.M):
            found.setdefault(name, float(moment))
        return {**found, "end": float(self.report["seconds"])}


@dataclass
class Crowd:
    """`local_ranks` ranks on each host. `args` belong to all of them, and `environments` to hosts,
    by index. All ranks end within `longest_s` seconds."""

    lab: Lab
    folder: Path
    local_ranks: int = 2
    args: tuple[str, ...] = ()
    longest_s: float = 240.0
    environments: dict[int, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for host in self.lab.hosts:
            self.config(host).mkdir(parents=True, exist_ok=True)
            (self.folder / f"run{host.index}").mkdir(exist_ok=True)
            (self.folder / f"lib{host.index}").mkdir(exist_ok=True)
            self.configure(host, device=f"packet:{host.interface}")

    def config(self, host: Host) -> Path:
        return self.folder / f"config{host.index}"

    def configure(self, host: Host, **keys: object) -> None:
        """Writes the host's ztcp0.conf."""
        text = "".join(f"{key} = {value}\n" for key, value in keys.items())
        (self.config(host) / "ztcp0.conf").write_text(text)

    def libraries(self, host: Host) -> Path:
        """A folder in which the host's NCCL looks for plugins first."""
        return self.folder / f"lib{host.index}"

    def _environment(self, host: Host) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HARP_", "NCCL_")) or name == "HARP_BUILD_DIR"
        }
        return {
            **kept,
            "HARP_CONF_DIR": str(self.config(host)),
            "HARP_RUN_DIR": str(self.folder / f"run{host.index}"),
            "LD_LIBRARY_PATH": str(self.libraries(host)),
            **self.environments.get(host.index, {}),
        }

    def hosts_of_ranks(self) -> list[Host]:
        """The host of each rank, by rank."""
        return [host for host in self.lab.hosts for _ in range(self.local_ranks)]

    def run(
        self,
        absent: Iterable[int] = (),
        rendezvous: str = "",
        launcher: Callable[[int, int], Mapping[str, str]] = lambda rank, ranks: {},
    ) -> Result:
        """Runs all ranks but the absent ones to their ends. launcher: variables of a rank; without
        any, the rank's options say who it is."""
        hosts = self.hosts_of_ranks()
        report, page = self.folder / "report.json", self.folder / "report.html"
        for path in (report, page):
            path.unlink(missing_ok=True)
        rendezvous = rendezvous or f"unix:{self.folder}/ranks"
        running: dict[int, subprocess.Popen[str]] = {}
        for rank, host in enumerate(hosts):
            if rank in absent:
                continue
            told = launcher(rank, len(hosts))
            args = [sys.executable, "-m", "harp", "check", "--rendezvous", rendezvous, *self.args]
            if not told:
                args += ["--rank", str(rank), "--ranks", str(len(hosts))]
            if rank == 0:
                args += ["--json", str(report), "--html", str(page)]
            running[rank] = subprocess.Popen(
                host.command(args),
                env={**self._environment(host), "LOCAL_RANK": "", **told},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        codes: list[Optional[int]] = [None] * len(hosts)
        said = [""] * len(hosts)
        text = ""
        try:
            for rank, process in running.items():
                out, said[rank] = process.communicate(timeout=self.longest_s)
                codes[rank] = process.returncode
                text = out if rank == 0 else text
                assert "Traceback" not in said[rank], said[rank]
        finally:
            for process in running.values():
                process.kill()
                process.wait()
        found = json.loads(report.read_text()) if report.exists() else {}
        return Result(codes, said, found, text)
