# SPDX-License-Identifier: Apache-2.0
"""A signal's handler ends a group amid a call of the same thread. Prints a line of JSON with what
each call and the next one say, and with the seconds of the end."""

from __future__ import annotations

import json
import signal
import threading
import time
from datetime import timedelta
from typing import Any, Callable

import torch
import torch.distributed as dist

from harp.torch import group as harp_group
from harp.torch import library as lib


def make() -> Any:
    return harp_group.create(dist.HashStore(), 0, 1, timedelta(seconds=60))


def post(group: Any) -> Any:
    return group.allreduce([torch.ones(100)])


def outcome(call: Callable[[Any], object], group: Any) -> str:
    try:
        call(group)
        return "well"
    except RuntimeError as error:
        return str(error)


def interrupted(owner: Any, name: str, call: Callable[[Any], object]) -> dict[str, Any]:
    """Ends a group in a handler at the start of a function that the call needs."""
    group, seconds = make(), [0.0]
    function = getattr(owner, name)

    def handle(*_: object) -> None:
        began = time.monotonic()
        try:
            group.shutdown()
        finally:
            seconds[0] = time.monotonic() - began

    def late(*args: Any) -> Any:
        setattr(owner, name, function)
        signal.raise_signal(signal.SIGTERM)
        return function(*args)

    signal.signal(signal.SIGTERM, handle)
    setattr(owner, name, late)
    said = outcome(call, group)
    told = {"call": said, "next": outcome(post, group), "seconds": seconds[0]}
    group.shutdown()
    return told


def future_of(group: Any) -> None:
    post(group).get_future().wait()


def main() -> None:
    told = {
        "post": interrupted(lib, "post", post),
        "abort": interrupted(lib, "library", lambda group: group.abort()),
        "future": interrupted(threading.Thread, "start", future_of),
    }
    for thread in set(threading.enumerate()) - {threading.current_thread()}:
        thread.join(10)  # started after the end of its group, which therefore does not join it
    print(json.dumps(told))


main()
