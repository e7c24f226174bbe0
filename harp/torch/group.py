# SPDX-License-Identifier: Apache-2.0
"""The process group: torch's collectives as calls of the C library.

Names and signatures of the methods are those of torch.distributed.ProcessGroup. Newer releases of
torch renamed some; both names exist. all_gather_into_tensor calls all_gather_single,
reduce_scatter_tensor calls reduce_scatter_single, and batch_isend_irecv send and recv. Every method
returns a HarpWork, and raises HarpError for a call that cannot work. Tensors must not change before
their work is done.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist

from harp.torch import algorithms, rendezvous, tensors
from harp.torch import library as lib
from harp.torch.devices import OPERATIONS, OtherDevices, by_device
from harp.torch.work import Completer, HarpWork, Operation

Tensors = Sequence[torch.Tensor]

_NO_TIMEOUT = timedelta(0)


def _milliseconds(timeout: timedelta) -> int:
    """At least 1: to the library, 0 means no limit."""
    return max(1, int(timeout.total_seconds() * 1000))


def create(store: Any, rank: int, size: int, timeout: timedelta) -> HarpProcessGroup:
    """Makes the group of one rank, as torch asks a backend to. Returns once all ranks have reached
    each other. Raises HarpError on all ranks if HARP cannot run on one of them."""
    return HarpProcessGroup(store, rank, size, timeout)


class HarpProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A torch.distributed process group over HARP."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self.timeout = rank, size, timeout
        self._name, self._description = "", "undefined"
        self._completer = Completer()
        self.others = OtherDevices()
        self._flying: list[Operation] = []  # keeps tensors alive, even if nobody keeps the work
        self._coalesced: Optional[list[HarpWork]] = None
        # Of threads that use the harp_group, against one that ends it. A signal's handler may run
        # amid a use, and the lock then lets it pass. `_uses` shows that.
        self._lock = threading.RLock()
        self._uses = 0
        self._group, measures = self._join(store)
        self._process = os.getpid()
        self._end = weakref.finalize(self, _destroy, self._group, self._completer, self._process)
        shares = self._share(timeout)
        rendezvous.withdraw(store, rank)  # all ranks have read it: they have come to _share
        if measures and not shares and size > 1:
            self._measure()

    def _join(self, store: Any) -> tuple[int, bool]:
        """Makes the harp_group and tells it the other ranks. Returns it, and whether the ranks
        measure the algorithms of all_reduce."""
        error = lib.error_text()
        host = rendezvous.own_host()
        handle = (lib.ctypes.c_char * lib.HANDLE)()
        try:
            local = rendezvous.local_rank()
            measures = algorithms.is_measured()
            lib.open_plugin()
            group: Optional[int] = lib.library().harp_group_create(
                self._rank, self._size, local, handle, error
            )
            if not group:
                raise lib.said(error)
        except (lib.HarpError, OSError) as failure:
            rendezvous.publish(store, self._rank, rendezvous.Card(host, failure=str(failure)))
            raise lib.HarpError(f"rank {self._rank} on {host}: {failure}") from None
        try:
            card = rendezvous.Card(host, bytes(handle), measures=measures)
            rendezvous.publish(store, self._rank, card)
            cards = rendezvous.collect(store, self._size)
            measures = rendezvous.agree_to_measure(cards)
        except BaseException:
            lib.library().harp_group_destroy(group)
            raise
        handles = b"".join(card.handle for card in cards)
        names = b"".join(
            card.host.encode()[: lib.NAME - 1].ljust(lib.NAME, b"\0") for card in cards
        )
        lib.library().harp_group_start(group, handles, names, error)
        return group, measures

    def _share(self, timeout: timedelta) -> bool:
        """Lets the ranks of a host use shared memory. Waits for all ranks. Returns whether they
        do."""
        error = lib.error_text()
        shares = int(lib.library().harp_group_share(self._group, _milliseconds(timeout), error))
        if shares < 0:
            raise lib.said(error)
        return shares > 0

    def _measure(self) -> None:
        """Chooses the algorithms of all_reduce. A failure of this rank fails the others, too."""
        try:
            algorithms.measure(self, self._group)
        except BaseException:
            self._end()
            raise

    # -- life

    @contextmanager
    def _in_use(self) -> Iterator[bool]:
        """Keeps the harp_group from its end. Yields whether it still is."""
        with self._lock:
            self._uses += 1
            try:
                yield self._end.alive
            finally:
                self._uses -= 1

    def shutdown(self) -> None:
        """Closes the links. Unfinished operations fail. Raises HarpError in a signal's handler that
        has interrupted a post: the C library would go on with freed memory."""
        if self._process != os.getpid():
            return  # a thread of the parent may have held the lock
        with self._lock:
            if self._uses:
                raise lib.HarpError(
                    "the handler of a signal cannot end the process group that it has interrupted: "
                    "end the group after the handler, or exit"
                )
            end = self._end.detach()
        if end:  # only the first call
            _, destroy, arguments, _ = end
            destroy(*arguments)

    def abort(self) -> None:
        """Fails all operations of this rank, and so those of the other ranks."""
        if self._process != os.getpid():
            return
        reason = f"rank {self._rank} on {rendezvous.own_host()} aborted the process group"
        with self._in_use() as alive:
            if alive:
                lib.library().harp_group_abort(self._group, reason.encode())

    def set_timeout(self, timeout: timedelta) -> None:
        """The limit for operations that are posted from now on."""
        self.timeout = timeout

    # torch asks a backend in C++ for these, and this group has none.

    def getBackendName(self) -> str:
        return "harp"

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def getGroupDesc(self) -> str:
        return self._description

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    name = getBackendName
    _get_backend_name = getBackendName

    # init_process_group asks the backend of a device_id.
    def _get_backend(self, device: torch.device) -> HarpProcessGroup:
        return self

    supports_splitting = False

    def __repr__(self) -> str:
        return f"HarpProcessGroup(rank={self._rank}, size={self._size})"

    # -- posting

    def _post(
        self,
        kind: int,
        read: Tensors,
        written: Tensors,
        opts: Any,
        peer: int = 0,
        dtype: int = 0,
        reduction: int = 0,
        tag: int = 0,
    ) -> Operation:
        if self._process != os.getpid():
            raise lib.HarpError("a forked process has no process group: use that of its parent")
        timeout = getattr(opts, "timeout", self.timeout)
        if timeout <= _NO_TIMEOUT:  # not set
            timeout = self.timeout
        call = lib.Call(
            kind,
            dtype,
            reduction,
            peer,
            lib.checked_tag(tag),
            self._waits(opts),
            _milliseconds(timeout),
            lib.views(read),
            lib.views(written),
        )
        with self._in_use() as alive:
            if not alive:
                raise lib.HarpError("this process group was shut down: make a new one")
            operation = Operation(lib.post(self._group, call), (*read, *written))
            self._flying = [old for old in self._flying if old.state() == lib.PENDING]
            self._flying.append(operation)
        return operation

    def _waits(self, opts: Any) -> bool:
        """Whether the caller waits anyhow. Releases of torch without asyncOp do not say so."""
        return self._coalesced is None and getattr(opts, "asyncOp", True) is False

    def _work(
        self,
        operations: Sequence[Operation],
        result: Tensors,
        opts: Any,
        finish: Optional[Callable[[], None]] = None,
    ) -> HarpWork:
        work = HarpWork(operations, result, self._completer, finish)
        if self._coalesced is not None:
            self._coalesced.append(work)
        elif self._waits(opts):
            work.wait()
        return work

    def _start_coalescing(self, device: Any) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: Any) -> HarpWork:
        works, self._coalesced = self._coalesced or [], None

        def finish() -> None:
            for work in works:
                work.resolve()

        operations = [operation for work in works for operation in work.operations]
        result = [tensor for work in works for tensor in work.result()]
        return HarpWork(operations, result, self._completer, finish)

    # -- reductions

    def _reduce_in_place(self, kind: int, written: Tensors, opts: Any, peer: int = 0) -> HarpWork:
        tensors.check(written, any_order=True)
        reduction, factor = lib.reduction(opts.reduceOp), lib.premultiplier(opts.reduceOp)
        # A reduce changes the root's tensor only.
        in_place = kind == lib.ALL_REDUCE or peer == self._rank
        operations = []
        for tensor in written:
            operand = tensors.premultiplied(tensor, factor, in_place)
            numbers, dtype = tensors.as_numbers(operand, reduction)
            operations.append(self._post(kind, (), (numbers,), opts, peer, dtype, reduction))
        return self._work(operations, written, opts)

    def allreduce(self, tensor_list: Tensors, opts: Any = None) -> HarpWork:
        return self._reduce_in_place(lib.ALL_REDUCE, tensor_list, opts or dist.AllreduceOptions())

    def allreduce_coalesced(self, tensor_list: Tensors, opts: Any = None) -> HarpWork:
        return self.allreduce(tensor_list, opts)

    def reduce(self, tensor_list: Tensors, opts: Any) -> HarpWork:
        return self._reduce_in_place(lib.REDUCE, tensor_list, opts, opts.rootRank)

    def _reduce_scatter_one(self, written: torch.Tensor, read: Tensors, opts: Any) -> Operation:
        tensors.check_alike([written, *read])
        reduction, factor = lib.reduction(opts.reduceOp), lib.premultiplier(opts.reduceOp)
        numbers, dtype = tensors.as_numbers(written, reduction)
        operands = [tensors.premultiplied(tensor, factor) for tensor in read]
        shares = [tensors.as_numbers(operand, reduction)[0] for operand in operands]
        if len(shares) != self._size or shares[self._rank].numel() != numbers.numel():
            raise lib.HarpError(
                f"reduce_scatter needs an input for each of {self._size} ranks, and an output of "
                "the size of this rank's input"
            )
        return self._post(
            lib.REDUCE_SCATTER, shares, (numbers,), opts, dtype=dtype, reduction=reduction
        )

    def reduce_scatter(
        self, output_tensors: Tensors, input_lists: Sequence[Tensors], opts: Any = None
    ) -> HarpWork:
        opts = opts or dist.ReduceScatterOptions()
        operations = [
            self._reduce_scatter_one(written, read, opts)
            for written, read in zip(output_tensors, input_lists)
        ]
        return self._work(operations, output_tensors, opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> HarpWork:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> HarpWork:
        tensors.check(inputs)
        shares = [tensors.parts(read.reshape(-1), (), self._size) for read in inputs]
        return self.reduce_scatter(outputs, shares, opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # -- movements

    def broadcast(self, tensor_list: Tensors, opts: Any) -> HarpWork:
        tensors.check(tensor_list, any_order=True)
        operations = [
            self._post(lib.BROADCAST, (), (tensor,), opts, opts.rootRank) for tensor in tensor_list
        ]
        return self._work(operations, tensor_list, opts)

    def _all_gather_one(self, written: Tensors, read: torch.Tensor, opts: Any) -> Operation:
        tensors.check_alike([*written, read])
        if len(written) != self._size:
            raise lib.HarpError(
                f"all_gather needs an output for each of {self._size} ranks, and got {len(written)}"
            )
        return self._post(lib.ALL_GATHER, (read,), written, opts)

    def allgather(
        self, output_lists: Sequence[Tensors], input_tensors: Tensors, opts: Any = None
    ) -> HarpWork:
        operations = [
            self._all_gather_one(written, read, opts)
            for written, read in zip(output_lists, input_tensors)
        ]
        return self._work(operations, [one for row in output_lists for one in row], opts)

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> HarpWork:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> HarpWork:
        tensors.check(outputs)
        shares = [tensors.parts(written.reshape(-1), (), self._size) for written in outputs]
        work = self.allgather(shares, inputs, opts)
        return work

    def allgather_coalesced(
        self, output_lists: Sequence[Tensors], input_list: Tensors, opts: Any = None
    ) -> HarpWork:
        """output_lists has a list for each rank, and a list has an output for each input."""
        return self.allgather(list(zip(*output_lists)), input_list, opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> HarpWork:
        tensors.check_alike([*outputs, *inputs])
        if len(outputs) != self._size or len(inputs) != self._size:
            raise lib.HarpError(f"all_to_all needs {self._size} inputs and outputs, one for a rank")
        return self._work([self._post(lib.ALL_TO_ALL, inputs, outputs, opts)], outputs, opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> HarpWork:
        tensors.check([output, input])
        return self.alltoall(
            tensors.parts(output, output_split_sizes, self._size),
            tensors.parts(input, input_split_sizes, self._size),
            opts,
        )

    alltoall_base = all_to_all_single

    def gather(
        self, output_lists: Sequence[Tensors], input_tensors: Tensors, opts: Any
    ) -> HarpWork:
        read, root = tensors.one(input_tensors), opts.rootRank
        written = output_lists[0] if self._rank == root else ()
        tensors.check_alike([read, *written])
        if self._rank == root and len(written) != self._size:
            raise lib.HarpError(f"gather needs {self._size} outputs at the root, one for a rank")
        return self._work([self._post(lib.GATHER, (read,), written, opts, root)], written, opts)

    def scatter(
        self, output_tensors: Tensors, input_lists: Sequence[Tensors], opts: Any
    ) -> HarpWork:
        written, root = tensors.one(output_tensors), opts.rootRank
        read = input_lists[0] if self._rank == root else ()
        tensors.check_alike([written, *read])
        if self._rank == root and len(read) != self._size:
            raise lib.HarpError(f"scatter needs {self._size} inputs at the root, one for a rank")
        return self._work([self._post(lib.SCATTER, read, (written,), opts, root)], [written], opts)

    def send(self, tensor_list: Tensors, dst: int, tag: int = 0) -> HarpWork:
        tensors.check(tensor_list)
        read = tensors.one(tensor_list)
        return self._work([self._post(lib.SEND, (read,), (), None, dst, tag=tag)], (), None)

    def recv(self, tensor_list: Tensors, src: int, tag: int = 0) -> HarpWork:
        tensors.check(tensor_list)
        written = tensors.one(tensor_list)
        operation = self._post(lib.RECEIVE, (), (written,), None, src, tag=tag)
        return self._work([operation], [written], None)

    def recv_anysource(self, tensor_list: Tensors, tag: int = 0) -> HarpWork:
        return self.recv(tensor_list, lib.ANY_RANK, tag)

    # -- waiting for each other

    def barrier(self, opts: Any = None) -> Any:
        device = getattr(opts, "device", None)
        other = device and self.others.group_for(self, device)
        if other:
            return other.barrier(opts)
        return self._work([self._post(lib.BARRIER, (), (), opts)], (), opts)

    def _barrier(self, timeout: timedelta) -> None:
        opts = dist.BarrierOptions()
        opts.timeout = timeout
        self.barrier(opts).wait()

    def monitored_barrier(self, timeout: Optional[timedelta] = None, *_: Any) -> None:
        """A barrier. Its failure names a rank that is missing."""
        self._barrier(timeout or self.timeout)

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to do: the ranks of a group count nothing together."""

    def _get_sequence_number_for_group(self) -> int:
        return 0


for _name in OPERATIONS:
    setattr(HarpProcessGroup, _name, by_device(_name, getattr(HarpProcessGroup, _name)))


def _destroy(group: int, completer: Completer, process: int) -> None:
    """Ends a harp_group, and the futures that still wait. A forked process has no such threads, and
    would wait for them for ever."""
    if process != os.getpid():
        return
    lib.library().harp_group_destroy(group)
    completer.end()
