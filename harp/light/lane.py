# SPDX-License-Identifier: Apache-2.0
"""A lane carries out reductions one after the other, beside the backward pass."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Optional

import torch


class Lane:
    """Jobs run in the order of their submission, so all ranks call collectives in the same order.

    Jobs on CPU tensors run in a thread. Jobs on CUDA tensors are queued on a stream of their own by
    the caller. `cycle_ms`: least time between the starts of two jobs of the thread.
    """

    def __init__(self, cycle_ms: float = 0.0) -> None:
        self._cycle_s = cycle_ms / 1000
        self._next_s = 0.0
        self._thread = ThreadPoolExecutor(1, "harp-light")
        self._stream: Any = None
        self._failure: Optional[BaseException] = None

    def submit(self, job: Callable[[], torch.Tensor], tensor: torch.Tensor) -> Any:
        """A future of the job's tensor. `tensor` is what the job reads and writes.

        The future raises what the job raises. All later jobs then fail in the same way, because the
        ranks no longer agree on the next operation.
        """
        if tensor.is_cuda:
            return self._on_stream(job, tensor)
        future: Any = torch.futures.Future()
        self._thread.submit(self._run, job, future)
        return future

    def _run(self, job: Callable[[], torch.Tensor], future: Any) -> None:
        try:
            if self._failure is not None:
                raise RuntimeError(f"an earlier reduction failed: {self._failure}")
            self._pace()
            result = job()
        except BaseException as failure:  # the caller gets it
            self._failure = self._failure or failure
            future.set_exception(failure)
        else:
            future.set_result(result)

    def _pace(self) -> None:
        time.sleep(max(0.0, self._next_s - time.monotonic()))
        self._next_s = time.monotonic() + self._cycle_s

    def _on_stream(self, job: Callable[[], torch.Tensor], tensor: torch.Tensor) -> Any:
        if self._stream is None:
            self._stream = torch.cuda.Stream(tensor.device)
        self._stream.wait_stream(torch.cuda.current_stream(tensor.device))
        tensor.record_stream(self._stream)
        future: Any = torch.futures.Future(devices=[tensor.device])
        with torch.cuda.stream(self._stream):
            future.set_result(job())
        return future
