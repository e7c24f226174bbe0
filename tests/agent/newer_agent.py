#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`harp` with the agent of a later release: version 2, whose replies have more members at their
end (newer_opener.py)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from newer_opener import REAL, VERSION

from harp import paths
from harp.agent import privileges, reply, request, server
from harp.cli import agent as command
from harp.cli.main import main


def serve() -> None:
    for module in (request, reply, server, command):
        module.VERSION = VERSION  # type: ignore[attr-defined]
    os.environ[REAL] = str(paths.agent_opener())
    paths.agent_opener = lambda: Path(__file__).with_name("newer_opener.py")  # type: ignore
    become = privileges.become
    privileges.become = lambda user, _: become(user, [sys.executable, *sys.argv])
    main()


if __name__ == "__main__":
    serve()
