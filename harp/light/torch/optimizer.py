# SPDX-License-Identifier: Apache-2.0
"""An optimizer that averages its gradients over all ranks before each step."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Callable, Optional

import torch

from harp.light.reducer import Reducer
from harp.light.settings import read
from harp.light.torch.compression import Compression
from harp.light.torch.operations import Average, averages


class Bucket:
    """Parameters of one type and device, whose gradients are reduced at once."""

    def __init__(self) -> None:
        self.parameters: list[torch.Tensor] = []
        self.ready: set[torch.Tensor] = set()
        self.future: Any = None
        self.parts: list[tuple[torch.Tensor, torch.Tensor]] = []

    def start(self, reducer: Reducer, average: bool) -> None:
        """Copies the gradients into one buffer, and submits it. A missing gradient is zero."""
        first = self.parameters[0]
        flat = first.new_zeros(sum(one.numel() for one in self.parameters))
        places = flat.split([one.numel() for one in self.parameters])
        self.parts = [(one, place.view_as(one)) for one, place in zip(self.parameters, places)]
        for parameter, place in self.parts:
            if parameter.grad is not None:
                place.copy_(parameter.grad)
        self.future = reducer.submit(flat, self.parts, average)

    def finish(self) -> None:
        """Waits, and gives the parameters their gradients. Raises what the reduction raised."""
        self.future.wait()
        for parameter, place in self.parts:
            if parameter.grad is None:
                parameter.grad = place.clone()
            else:
                parameter.grad.copy_(place)
        self.future, self.parts = None, []
        self.ready.clear()


def fuse(parameters: Iterable[torch.Tensor], most_bytes: int) -> list[Bucket]:
    """Buckets of at most `most_bytes`, or of one parameter, in the order of `parameters`."""
    buckets: list[Bucket] = []
    room = 0
    for parameter in parameters:
        size = parameter.numel() * parameter.element_size()
        last = buckets[-1].parameters[-1] if buckets else None
        fits = last is not None and (last.dtype, last.device) == (parameter.dtype, parameter.device)
        if not fits or size > room:
            buckets.append(Bucket())
            room = most_bytes
        buckets[-1].parameters.append(parameter)
        room -= size
    return buckets


class Distributed(torch.optim.Optimizer):
    """What DistributedOptimizer adds to the class of an optimizer."""

    def _distribute(self, reducer: Reducer, average: bool, passes: int, most_bytes: int) -> None:
        self._light_reducer, self._light_average, self._light_passes = reducer, average, passes
        self._light_skips = self._light_synchronized = False
        chosen = [one for group in self.param_groups for one in group["params"]
                  if one.requires_grad]  # fmt: skip
        # The backward pass makes the gradients of the last parameters first.
        self._light_buckets = fuse(reversed(chosen), most_bytes)
        self._light_home = {one: bucket for bucket in self._light_buckets
                            for one in bucket.parameters}  # fmt: skip
        self._light_counts = dict.fromkeys(chosen, 0)
        self._light_started = 0
        for parameter in chosen:
            parameter.register_post_accumulate_grad_hook(self._light_accumulated)

    def _light_accumulated(self, parameter: torch.Tensor) -> None:
        self._light_synchronized = False
        self._light_counts[parameter] += 1
        if self._light_counts[parameter] < self._light_passes:
            return
        bucket = self._light_home[parameter]
        if bucket.future is not None:
            raise RuntimeError(
                "a gradient came after its reduction had begun; call step() after each backward "
                "pass, or set backward_passes_per_step"
            )
        bucket.ready.add(parameter)
        # The ranks' gradients become ready in different orders, but buckets start in one order.
        waiting = self._light_buckets[self._light_started :]
        for one in waiting:
            if len(one.ready) < len(one.parameters):
                break
            self._light_start(one)

    def _light_start(self, bucket: Bucket) -> None:
        bucket.start(self._light_reducer, self._light_average)
        self._light_started += 1

    def synchronize(self) -> None:
        """Waits until all gradients are reduced. `step` does so, too.

        Raises RuntimeError of the collectives.
        """
        for bucket in self._light_buckets[self._light_started :]:
            self._light_start(bucket)
        for bucket in self._light_buckets:
            bucket.finish()
        self._light_started = 0
        self._light_counts = dict.fromkeys(self._light_counts, 0)
        self._light_reducer.step += 1
        self._light_synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A `step` inside does not synchronize. Horovod's programs use it to clip gradients."""
        self._light_skips = True
        try:
            yield
        finally:
            self._light_skips = False

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Takes the step of the optimizer's own class, with gradients that are reduced once."""
        self._light_before_step()
        return super().step(closure)

    def _light_before_step(self) -> None:
        if not (self._light_skips or self._light_synchronized):
            self.synchronize()
        self._light_synchronized = False

    def _light_keep_patch(self) -> None:
        """A learning-rate scheduler that was made before has put a step of its own into the
        optimizer, which calls that of the optimizer's former class. It must reduce first."""
        patched = vars(self).get("step")
        if patched is None:
            return
        before_step = weakref.WeakMethod(self._light_before_step)

        @functools.wraps(patched)  # also keeps the mark by which other schedulers know it
        def step(*args: Any, **named: Any) -> Any:
            before = before_step()
            assert before
            before()
            return patched(*args, **named)

        self.step = step  # type: ignore[method-assign]


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Optional[Iterable[tuple[str, torch.Tensor]]] = None,
    compression: Compression = Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    warmup_steps: int = 0,
    error_feedback: bool = True,
) -> Any:
    """The same optimizer, which from now on reduces gradients over all ranks.

    All ranks call it at the same time, after init. Buckets of at most HOROVOD_FUSION_THRESHOLD
    bytes are reduced beside the backward pass. A gradient that no rank has becomes zero, as in
    Horovod.

    named_parameters: only for Horovod's programs; the optimizer's own parameters are meant
    warmup_steps: steps until the ratio of top-k is reached
    error_feedback: False drops what top-k does not send; only measurements need it
    Raises SettingError for a bad variable.
    """
    if backward_passes_per_step < 1:
        raise ValueError(
            f"backward_passes_per_step is {backward_passes_per_step}; it must be at least 1"
        )
    average = averages(op)
    settings = read()
    reducer = Reducer(
        settings,
        optimizer=optimizer,
        fp16=compression is Compression.fp16,
        warmup_steps=warmup_steps,
        error_feedback=error_feedback,
    )
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (Distributed, kind), {})
    made: Any = optimizer
    made._distribute(reducer, average, backward_passes_per_step, settings.fusion_bytes)
    made._light_keep_patch()
    return made
