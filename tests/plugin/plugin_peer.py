# SPDX-License-Identifier: Apache-2.0
"""Controls the ranks of a conformance test, each a process that runs plugin_rank.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

RANK = Path(__file__).with_name("plugin_rank.py")


class PeerFailure(AssertionError):
    """A call failed. code: NCCL's code, or None if the failure is not the plugin's."""

    def __init__(self, text: str, code: Optional[int]) -> None:
        super().__init__(text)
        self.code = code


class Peer:
    """A rank in a process of its own. peer.listen(...) calls and waits. peer.start("wait", ...)
    returns a future, so that ranks and threads can work at the same time."""

    def __init__(
        self, prefix: Sequence[str] = (), environment: Optional[Mapping[str, str]] = None
    ) -> None:
        self.killed = False
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(RANK)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            text=True,
        )
        self._pending: dict[int, "Future[Any]"] = {}
        self._lock = threading.Lock()
        self._last = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for text in self.process.stdout:
            answer = json.loads(text)
            future = self._pending.pop(answer["id"])
            if "failure" in answer:
                future.set_exception(PeerFailure(answer["failure"], answer.get("code")))
            else:
                future.set_result(answer["result"])
        for future in list(self._pending.values()):
            future.set_exception(PeerFailure("the peer's process ended", None))

    def start(self, call: str, **arguments: Any) -> "Future[Any]":
        future: "Future[Any]" = Future()
        assert self.process.stdin
        with self._lock:
            self._last += 1
            self._pending[self._last] = future
            line = json.dumps({"id": self._last, "call": call, **arguments})
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        return future

    def __getattr__(self, call: str) -> Any:
        if call.startswith("_"):
            raise AttributeError(call)
        return lambda **arguments: self.start(call, **arguments).result(timeout=60)

    def kill(self) -> None:
        self.killed = True
        self.process.kill()
        self.process.wait(timeout=10)

    def dismiss(self) -> None:
        """Closes the process's input, so that it ends."""
        assert self.process.stdin
        try:
            self.process.stdin.close()
        except BrokenPipeError:  # it has ended already
            pass

    def end(self) -> None:
        """Ends the process. AssertionError if it was not killed and its exit status is not 0, which
        also reports a sanitizer's findings."""
        self.dismiss()
        try:
            status = self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("a rank lives on though its input has ended") from None
        assert self.killed or status == 0, f"a rank ended with {status}"


def end_all(ranks: Iterable[Peer]) -> None:
    """Ends the ranks of a job together. Raises AssertionError if a rank fails at its end."""
    with ExitStack() as stack:
        for rank in ranks:
            stack.callback(rank.end)
            rank.dismiss()
