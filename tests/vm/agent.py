# SPDX-License-Identifier: Apache-2.0
"""The guest's only service: runs commands that the host sends over a serial port.

It first sends the line "ready". A line from the host is JSON: {"id", "args", "env", "input",
"timeout"}, the timeout in seconds. The answer at the end of the command is {"id", "code", "out",
"err"}; code is 124 after the timeout. Commands run in parallel.
"""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any, BinaryIO

PORT = "/dev/vport*p1"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Runs a request's command to its end."""
    environment = {"PATH": PATH, "HOME": "/root", "LC_ALL": "C.UTF-8", **request["env"]}
    try:
        done = subprocess.run(
            request["args"],
            env=environment,
            cwd="/",
            input=request["input"],
            capture_output=True,
            text=True,
            timeout=request["timeout"],
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        code = 124
        out, err = ((late.stdout or b"").decode(), (late.stderr or b"").decode())
    except OSError as failure:
        code, out, err = 127, "", str(failure)
    return {"id": request["id"], "code": code, "out": out, "err": err}


def serve(port: BinaryIO) -> None:
    """Answers requests, each in its own thread, for the lifetime of the guest."""
    one_at_a_time = threading.Lock()

    def answer(request: dict[str, Any]) -> None:
        line = json.dumps(run(request)).encode() + b"\n"
        with one_at_a_time:
            while line:  # a port accepts 32 KiB at a time
                line = line[port.write(line) :]

    port.write(b"ready\n")
    for line in port:
        threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()


def main() -> None:
    if os.getpid() == 1:
        os.environ["PATH"] = PATH
    while not (found := glob.glob(PORT)):
        time.sleep(0.02)
    with open(found[0], "r+b", buffering=0) as port:
        serve(port)
    print("vm: the host has hung up", file=sys.stderr)


if __name__ == "__main__":
    main()
