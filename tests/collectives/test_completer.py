# SPDX-License-Identifier: Apache-2.0
"""Threads that complete futures, without a group."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

pytestmark = pytest.mark.torch

LIMIT_S = 5.0  # less than harp.torch.work.END_S


class Waited:
    """An operation that ends with an event."""

    error = None

    def __init__(self, over: threading.Event) -> None:
        self.over = over

    def state(self) -> int:
        return int(self.over.is_set())

    def wait(self, timeout_s: float, drives: bool) -> int:
        self.over.wait()
        return self.state()


def make_work(completer: Any, over: threading.Event) -> Any:
    from harp.torch.work import HarpWork

    operation: Any = Waited(over)
    return HarpWork([operation], [], completer)


def all_done(futures: list[Any]) -> bool:
    limit = time.monotonic() + LIMIT_S
    while not all(future.done() for future in futures) and time.monotonic() < limit:
        time.sleep(0.01)
    return all(future.done() for future in futures)


def test_group_may_end_while_a_thread_of_futures_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a signal's handler ended it, which also ends the operations of other threads."""
    from harp.torch.work import Completer

    completer, over = Completer(), threading.Event()
    futures = [make_work(completer, over).get_future()]
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        over.set()
        completer.end()
        start(thread)

    def ask() -> None:
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        futures.append(make_work(completer, over).get_future())

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(LIMIT_S)
    assert len(futures) == 2 and all_done(futures)


def refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("ends_first", [False, True])
def test_a_busy_thread_completes_futures_if_no_other_can_start(
    ends_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harp.torch.work import Completer

    completer, over = Completer(), threading.Event()
    works = [make_work(completer, over) for _ in range(4)]
    before = set(threading.enumerate())

    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            works[0].get_future()
    futures = [works[0].get_future()]
    monkeypatch.setattr(threading.Thread, "start", refuse)
    futures += [work.get_future() for work in works[1:3]]
    monkeypatch.undo()
    if ends_first:
        threading.Timer(0.1, over.set).start()
    else:
        over.set()
        assert all_done(futures)
        futures.append(works[3].get_future())
    completer.end()
    assert all_done(futures)
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name == "harp-futures"]


def test_a_callback_does_not_get_a_future_of_its_own_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from harp.torch.work import Completer

    completer, over = Completer(), threading.Event()
    works = [make_work(completer, over) for _ in range(2)]
    nested = works[0].get_future().then(lambda _: works[1].get_future())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    over.set()
    with pytest.raises(RuntimeError, match="can't start"):
        nested.wait()
    monkeypatch.undo()
    assert all_done([works[1].get_future()])
    completer.end()
