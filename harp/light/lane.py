# SPDX-License-Identifier: Apache-2.0
"""A lane carries out reductions one after the other, beside the backward pass."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from queue import SimpleQueue
from typing import Any, Callable, Optional

import torch

Job = tuple[Callable[[], torch.Tensor], Any]
END_S = 0.5  # longest wait for a thread at exit, seconds


def _carry_out(jobs: SimpleQueue[Optional[Job]], cycle_s: float) -> None:
    """The thread. It knows the queue and no lane, so that a lane without users ends."""
    failure: Optional[BaseException] = None
    start_s = 0.0
    while True:
        entry = jobs.get()
        if entry is None:
            return
        job, future = entry
        try:
            if failure is not None:
                raise RuntimeError(f"an earlier reduction failed: {failure}")
            time.sleep(max(0.0, start_s - time.monotonic()))
            start_s = time.monotonic() + cycle_s
            result = job()
        except BaseException as raised:  # the caller gets it
            failure = failure or raised
            future.set_exception(raised)
        else:
            future.set_result(result)
        # A gradient must not stay in memory until the next job comes.
        del entry, job, future


_threads: "weakref.WeakKeyDictionary[threading.Thread, SimpleQueue[Optional[Job]]]"
_threads = weakref.WeakKeyDictionary()


@atexit.register
def _end_threads() -> None:
    """Ends idle threads before the interpreter does. It would stop a thread inside PyTorch, whose
    C++ code then aborts the process. A thread that waits for other ranks delays the end by END_S.
    """
    for jobs in list(_threads.values()):
        jobs.put(None)
    for thread in list(_threads):
        thread.join(END_S)


class Lane:
    """Jobs run in the order of their submission, so all ranks call collectives in the same order.

    Jobs on CPU tensors run in a thread. Jobs on CUDA tensors are queued on a stream of their own by
    the caller. `cycle_ms`: least time between the starts of two jobs of the thread.
    """

    def __init__(self, cycle_ms: float = 0.0) -> None:
        self._stream: Any = None
        self._jobs: SimpleQueue[Optional[Job]] = SimpleQueue()
        # A rank that ends by an exception must not wait for a collective of the others.
        args = (self._jobs, cycle_ms / 1000)
        thread = threading.Thread(target=_carry_out, args=args, name="harp-light", daemon=True)
        _threads[thread] = self._jobs
        thread.start()
        weakref.finalize(self, self._jobs.put, None)

    def submit(self, job: Callable[[], torch.Tensor], tensor: torch.Tensor) -> Any:
        """A future of the job's tensor. `tensor` is what the job reads and writes.

        The future raises what the job raises. All later jobs then fail in the same way, because the
        ranks no longer agree on the next operation.
        """
        if tensor.is_cuda:
            return self._on_stream(job, tensor)
        future: Any = torch.futures.Future()
        self._jobs.put((job, future))
        return future

    def _on_stream(self, job: Callable[[], torch.Tensor], tensor: torch.Tensor) -> Any:
        if self._stream is None:
            self._stream = torch.cuda.Stream(tensor.device)
        self._stream.wait_stream(torch.cuda.current_stream(tensor.device))
        tensor.record_stream(self._stream)
        future: Any = torch.futures.Future(devices=[tensor.device])
        with torch.cuda.stream(self._stream):
            future.set_result(job())
        return future
