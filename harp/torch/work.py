# SPDX-License-Identifier: Apache-2.0
"""Operations under way, as torch sees them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist

from harp.torch import library as lib

# A thread in C handles no signal, so it returns to Python this often for Ctrl-C.
_LOOK_MS = 500
END_S = 10.0  # longest wait of end() for its threads, seconds


class Operation:
    """A harp_op and the tensors whose memory it uses."""

    def __init__(self, op: int, tensors: Sequence[torch.Tensor]) -> None:
        self._library = lib.library()
        self._op = op
        self._tensors = tensors
        self._state = lib.PENDING
        self.error: Optional[lib.HarpError] = None

    def state(self) -> int:
        """PENDING, DONE or FAILED."""
        if self._state == lib.PENDING and self._library.harp_op_state(self._op) != lib.PENDING:
            self._wait_in_c(1, False)  # fetches the error, and returns at once
        return self._state

    def wait(self, timeout_s: float, drives: bool) -> int:
        """Waits, for at most timeout_s seconds (0: without a limit). drives: this thread makes
        progress meanwhile. Returns the state."""
        limit = time.monotonic() + timeout_s if timeout_s > 0 else None
        while self.state() == lib.PENDING:
            left_ms = _LOOK_MS
            if limit is not None:
                left_ms = min(left_ms, int((limit - time.monotonic()) * 1000))
            if left_ms <= 0:
                break
            self._wait_in_c(left_ms, drives)
        return self._state

    def _wait_in_c(self, timeout_ms: int, drives: bool) -> None:
        error = lib.error_text()
        state = self._library.harp_op_wait(self._op, timeout_ms, drives, error)
        if state == lib.FAILED:
            self.error = lib.said(error)
        if state != lib.PENDING:
            self._tensors = ()
        self._state = state

    def source(self) -> int:
        return int(self._library.harp_op_source(self._op))

    def __del__(self) -> None:
        self._library.harp_op_free(self._op)


class HarpWork(dist.Work):  # type: ignore[misc]
    """One or more operations. `result` has the tensors that they write.

    finish: runs once, before the first wait returns, to move results from buffers.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        result: Sequence[torch.Tensor],
        completer: Completer,
        finish: Optional[Callable[[], None]] = None,
    ) -> None:
        super().__init__()
        self.operations = operations
        self._result = list(result)
        self._completer = completer
        self._finish = finish
        self._finish_lock = threading.Lock()
        self._future: Any = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits until all is done. Raises HarpError after a failure or the timeout."""
        seconds = timeout.total_seconds()
        limit = time.monotonic() + seconds if seconds > 0 else None
        for operation in self.operations:
            left = 0.0 if limit is None else max(0.001, limit - time.monotonic())
            if operation.wait(left, True) == lib.PENDING:
                raise lib.HarpError(
                    f"the operation has not ended within the {seconds} s of wait(); it continues"
                )
        self.resolve()
        return True

    def resolve(self) -> None:
        """Raises the failure of a finished operation, or moves results to their places."""
        failure = self.exception()
        if failure is not None:
            raise failure
        with self._finish_lock:
            finish, self._finish = self._finish, None
            if finish:
                finish()

    def wait_beside(self) -> None:
        """Waits without making progress: another thread does."""
        for operation in self.operations:
            operation.wait(0, False)

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(operation.state() != lib.PENDING for operation in self.operations)

    def is_success(self) -> bool:
        return all(operation.state() == lib.DONE for operation in self.operations)

    def exception(self) -> Optional[lib.HarpError]:
        errors = (operation.error for operation in self.operations if operation.state() < 0)
        return next(errors, None)

    def result(self) -> list[torch.Tensor]:
        return self._result

    def _source_rank(self) -> int:
        return self.operations[0].source()

    source_rank = _source_rank

    def get_future(self) -> Any:
        """A future with the written tensors. Its callbacks run in threads of the group, several
        at once."""
        if self._future is None:
            base: Any = torch.futures.Future()
            # Only `then` passes an exception on to C++.
            future = base.then(lambda _: self._value())
            self._completer.complete(self, base)
            self._future = future  # now: a later call tries again if this one has no thread
        return self._future

    def _value(self) -> list[torch.Tensor]:
        self.resolve()
        return self._result


class Completer:
    """Threads that complete futures. A callback may wait for another future, and so may keep its
    thread: a new thread starts whenever none is idle."""

    def __init__(self) -> None:
        self._jobs: "queue.SimpleQueue[Optional[tuple[HarpWork, Any]]]" = queue.SimpleQueue()
        self._threads: set[threading.Thread] = set()
        # Idle threads minus waiting jobs. Below zero: so many jobs wait for a busy thread.
        self._idle = 0
        self._ended = False
        # A signal's handler may end the group while its thread has the lock.
        self._lock = threading.RLock()

    def complete(self, work: HarpWork, future: Any) -> None:
        """Sets the future when the work is over. Raises RuntimeError if no thread can do so."""
        with self._lock:
            claims = self._idle > 0
            if claims:
                self._idle -= 1
        if not claims:
            self._start()
        self._jobs.put((work, future))

    def _start(self) -> None:
        """Starts a thread. The lock is free meanwhile: a signal's handler may end the group, and
        then waits for threads that need the lock. If no thread can start, a busy one takes the
        job later. Raises RuntimeError if none is busy, after the end, or in a callback, which may
        wait for its own job."""
        thread = threading.Thread(target=self._run, name="harp-futures", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                callback = threading.current_thread() in self._threads
                if callback or self._ended or not self._threads:
                    raise
                self._idle -= 1
            return
        with self._lock:
            self._threads.add(thread)

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            work, future = job
            work.wait_beside()
            future.set_result(None)
            del job, work, future
            with self._lock:
                if self._ended and self._idle >= 0:
                    return
                self._idle += 1

    def end(self) -> None:
        """Ends the threads after the futures that they have. Later futures start new ones."""
        with self._lock:
            self._ended = True
            while self._idle > 0:
                self._idle -= 1
                self._jobs.put(None)
            threads, self._threads = self._threads, set()
        limit = time.monotonic() + END_S
        for thread in threads - {threading.current_thread()}:
            thread.join(max(0.0, limit - time.monotonic()))
