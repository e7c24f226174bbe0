# SPDX-License-Identifier: Apache-2.0
"""The relay between two hosts of a lab: its faults and its process."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Callable, Dict

from harp.paths import build_dir


class RelayError(RuntimeError):
    """The relay's spec is wrong, it is not built, did not start, or ended early."""


def _number(kind: Callable[[str], Any], key: str, value: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise RelayError(f"relay spec: {key}={value}: not a number") from None


@dataclass(frozen=True)
class RelaySpec:
    """The faults of a relay, in both directions. The same seed gives the same faults.

    drop, duplicate, reorder, corrupt: probabilities for each TCP frame. A loss
    drops drop_burst frames in a row. A reordered frame is overtaken by 3 to
    reorder_depth others. A corrupt frame has one flipped byte after its Ethernet
    header; its checksums are completed before. delay_us: one way. rate_mbps: 0 is no
    limit. queue: the most frames that wait for delay and rate; others are dropped.
    """

    drop: float = 0.0
    drop_burst: int = 1
    duplicate: float = 0.0
    reorder: float = 0.0
    reorder_depth: int = 30
    corrupt: float = 0.0
    delay_us: int = 0
    rate_mbps: int = 0
    queue: int = 4096
    seed: int = 1

    @classmethod
    def parse(cls, text: str) -> RelaySpec:
        """Parses the format of `text`. Raises RelayError for an unknown key or a bad number."""
        values: Dict[str, Any] = {}
        types = {f.name: type(f.default) for f in fields(cls)}
        for word in filter(None, text.split(",")):
            key, _, value = word.partition("=")
            if key == "reorder" and "/" in value:
                value, _, depth = value.partition("/")
                values["reorder_depth"] = _number(int, "reorder", depth)
            if key not in types or key == "reorder_depth":
                keys = sorted(set(types) - {"reorder_depth"})
                raise RelayError(f"relay spec: {word!r}: the keys are {', '.join(keys)}")
            values[key] = _number(types[key], key, value)
        return cls(**values)

    def text(self) -> str:
        """The spec in the format of the relay program."""
        settings = {
            "drop": self.drop,
            "drop_burst": self.drop_burst,
            "duplicate": self.duplicate,
            "reorder": f"{self.reorder}/{self.reorder_depth}",
            "corrupt": self.corrupt,
            "delay_us": self.delay_us,
            "rate_mbps": self.rate_mbps,
            "queue": self.queue,
            "seed": self.seed,
        }
        return ",".join(f"{key}={value}" for key, value in settings.items())


def relay_program() -> Path:
    """The path of the built relay. Raises RelayError with the way to build it."""
    program = build_dir() / "tools" / "relay" / "harp-relay"
    if not program.is_file():
        raise RelayError(f"{program} is missing: build it with meson compile -C {build_dir()}")
    return program


class Relay:
    """A running relay in a namespace with two interfaces."""

    def __init__(self, spec: RelaySpec, namespace: str, a: str, b: str) -> None:
        """Starts it and waits up to 10 s until it forwards. Raises RelayError with its output."""
        self._folder = tempfile.TemporaryDirectory(prefix="harp-relay-")
        self._report = Path(self._folder.name) / "report.json"
        args = ["ip", "netns", "exec", namespace, relay_program(), a, b, spec.text(), self._report]
        self._process = subprocess.Popen(
            [str(word) for word in args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout
        ready, _, _ = select.select([self._process.stdout], [], [], 10)
        if not ready or self._process.stdout.readline() != "ready\n":
            self._process.kill()
            _, said = self._process.communicate()
            self._folder.cleanup()
            raise RelayError(said.strip() or "the relay did not start within 10 s")

    def stop(self) -> Dict[str, Any]:
        """Ends it. Returns its counts by direction ("a_to_b", "b_to_a").

        Raises RelayError if it had ended early.
        """
        early = self._process.poll() is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            _, said = self._process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, said = self._process.communicate()
        try:
            if early or self._process.returncode:
                raise RelayError(f"the relay ended with {self._process.returncode}: {said.strip()}")
            counts: Dict[str, Any] = json.loads(self._report.read_text())
        finally:
            self._folder.cleanup()
        return counts
