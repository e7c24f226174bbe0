# SPDX-License-Identifier: Apache-2.0
"""NCCL's net interface in ctypes: a second declaration, independent of the C headers.

A wrong field in the C headers would stay unnoticed between the plugin and harp
perf, which both use them. This declaration detects it.
"""

from __future__ import annotations

import _ctypes
import ctypes as c
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any, Optional

SUCCESS, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_USAGE, REMOTE_ERROR = 0, 2, 3, 5, 6
PTR_HOST, PTR_CUDA = 1, 2

_P = c.c_void_p
_PP = c.POINTER(c.c_void_p)
_INT = c.c_int
_INTP = c.POINTER(c.c_int)
_SIZEP = c.POINTER(c.c_size_t)

_LOGGER = c.CFUNCTYPE(None, _INT, c.c_ulong, c.c_char_p, _INT, c.c_char_p, c.c_char_p)


class NcclError(Exception):
    """A call of the plugin did not return ncclSuccess."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: ncclResult {code}")
        self.code = code


def _struct(name: str, fields: list[tuple[str, Any]]) -> type[c.Structure]:
    return type(name, (c.Structure,), {"_fields_": fields})


@cache
def properties_type(api: int) -> type[c.Structure]:
    """ncclNetProperties_vN_t."""
    virtual = _struct("VProps", [("ndevs", _INT), ("devs", _INT * (8 if api >= 12 else 4))])
    fields: list[tuple[str, Any]] = [
        ("name", c.c_char_p),
        ("pciPath", c.c_char_p),
        ("guid", c.c_uint64),
        ("ptrSupport", _INT),
    ]
    if api >= 8:
        fields.append(("regIsGlobal", _INT))
    if api >= 9:
        fields.append(("forceFlush", _INT))
    fields += [("speed", _INT), ("port", _INT)]
    if api >= 5:
        fields.append(("latency", c.c_float))
    fields.append(("maxComms", _INT))
    if api >= 5:
        fields.append(("maxRecvs", _INT))
    if api >= 7:
        fields += [("netDeviceType", _INT), ("netDeviceVersion", _INT)]
    if api >= 9:
        fields += [("vProps", virtual), ("maxP2pBytes", c.c_size_t), ("maxCollBytes", c.c_size_t)]
    if api >= 11:
        fields.append(("maxMultiRequestSize", _INT))
    if api >= 12:
        fields += [("railId", c.c_int16), ("planeId", c.c_int16)]
    return _struct(f"Properties_v{api}", fields)


@cache
def table_type(api: int, properties: type[c.Structure]) -> type[c.Structure]:
    """ncclNet_vN_t."""

    def call(*arguments: Any) -> Any:
        return c.CFUNCTYPE(_INT, *arguments)

    context = [_P] if api >= 11 else []
    config = [_P] if api == 10 else []
    device_comm = [_PP] if api >= 7 else []
    profiler = [_P] if api >= 10 else []
    register_size = c.c_size_t if api >= 8 else _INT
    size = c.c_size_t if api >= 9 else _INT
    if api >= 11:
        init = call(_PP, c.c_uint64, _P, _LOGGER, _P)
    elif api == 10:
        init = call(_LOGGER, _P)
    else:
        init = call(_LOGGER)
    if api == 4:
        isend = irecv = iflush = call(_P, _P, _INT, _P, _PP)
    else:
        isend = call(_P, _P, size, _INT, _P, *profiler, _PP)
        irecv = call(_P, _INT, _PP, c.POINTER(size), _INTP, _PP, *profiler, _PP)
        iflush = call(_P, _INT, _PP, _INTP, _PP, _PP)
    fields: list[tuple[str, Any]] = [
        ("name", c.c_char_p),
        ("init", init),
        ("devices", call(_INTP)),
        ("getProperties", call(_INT, c.POINTER(properties))),
        ("listen", call(*context, _INT, _P, _PP)),
        ("connect", call(*context, _INT, *config, _P, _PP, *device_comm)),
        ("accept", call(_P, _PP, *device_comm)),
        ("regMr", call(_P, _P, register_size, _INT, _PP)),
    ]
    if api >= 6:
        fields.append(("regMrDmaBuf", _P))
    fields += [
        ("deregMr", call(_P, _P)),
        ("isend", isend),
        ("irecv", irecv),
        ("iflush", iflush),
        ("test", call(_P, _INTP, _INTP)),
        ("closeSend", call(_P)),
        ("closeRecv", call(_P)),
        ("closeListen", call(_P)),
    ]
    if api >= 7:
        fields += [("getDeviceMr", _P), ("irecvConsumed", _P)]
    if api >= 9:
        fields.append(("makeVDevice", _P))
    if api >= 11:
        fields += [("finalize", call(_P)), ("setNetAttr", _P)]
    return _struct(f"Net_v{api}", fields)


class _Logger:
    """NCCL's logger. A plugin may call it from init to its last finalize. A later call aborts the
    process, because NCCL may have unloaded the logger."""

    def __init__(self) -> None:
        self.over = False
        self.function = _LOGGER(self._log)

    def _log(
        self, level: int, flags: int, file: bytes, line: int, form: bytes, text: bytes
    ) -> None:
        if self.over:
            print("the logger was called after the last finalize", file=sys.stderr, flush=True)
            os.abort()
        # The plugins format their lines themselves: the format is "%s".
        if level <= 2:
            said = (text or b"").decode(errors="replace")
            print(f"NCCL WARN {said}", file=sys.stderr, flush=True)


_logger = _Logger()  # never freed: an unloaded plugin may still refer to it


class Plugin:
    """One version of a plugin's interface. Calls raise NcclError."""

    def __init__(self, path: Path, api: int) -> None:
        """Loads a plugin as NCCL does. OSError or ValueError if it cannot be loaded or lacks the
        version."""
        self.api = api
        self.handle_size = 64 if api < 5 else 128
        self.max_requests = 8 if api < 7 else 32
        self._properties_type = properties_type(api)
        # ctypes adds RTLD_NOW; local by default
        self._library = c.CDLL(str(path), mode=c.DEFAULT_MODE)
        self._net = table_type(api, self._properties_type).in_dll(
            self._library, f"ncclNetPlugin_v{api}"
        )
        self._contexts: list[c.c_void_p] = []  # from version 11 on: one for each init

    def unload(self) -> None:
        """Unloads the plugin, as NCCL does after its last communicator has ended. Do not use this
        object afterwards."""
        _ctypes.dlclose(self._library._handle)

    def exports(self, symbol: str) -> bool:
        return hasattr(self._library, symbol)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._net, name)(*arguments)
        if code != SUCCESS:
            raise NcclError(name, code)

    @property
    def name(self) -> str:
        return self._net.name.decode()

    def may_be_null(self) -> dict[str, bool]:
        """Whether a function is missing, for each that NCCL calls without a check."""
        unchecked = [
            field for field, kind in self._net._fields_ if kind is not _P and field != "name"
        ]
        return {field: not getattr(self._net, field) for field in unchecked}

    def _make(self, name: str, out: Any, *arguments: Any, held: int = 0x5A5A) -> Any:
        """Calls a function with an output. Returns the output; held: its value before the call.
        AssertionError if the output is not NULL after an error."""
        out.value = held
        code = getattr(self._net, name)(*arguments)
        if code != SUCCESS and out.value:
            raise AssertionError(f"{name}: its output is {out.value:#x} after error {code}")
        if code != SUCCESS:
            raise NcclError(name, code)
        return out.value

    def init(self) -> None:
        log = _logger.function
        _logger.over = False
        if self.api >= 11:
            config, context = c.c_int(-1), _P()
            number = len(self._contexts) + 1
            place = [c.byref(context), number, c.addressof(config)]
            self._make("init", context, *place, log, None)
            self._contexts.append(context)
        elif self.api == 10:
            self._call("init", log, None)
        else:
            self._call("init", log)

    def finalize(self) -> None:
        """Ends the communicator that was opened last. Before version 11 this does nothing."""
        if self.api >= 11:
            self.end(self.contexts()[-1])

    def contexts(self) -> list[int]:
        """The contexts of the open communicators, oldest first."""
        return [context.value or 0 for context in self._contexts]

    def end(self, context: int) -> None:
        """Calls finalize with any value as context."""
        self._call("finalize", context)
        known = [index for index, one in enumerate(self.contexts()) if one == context]
        if known:
            del self._contexts[known[-1]]
        _logger.over = not self._contexts

    def devices(self) -> int:
        count = _INT()
        return self._make("devices", count, c.byref(count))

    def properties(self, device: int = 0) -> dict[str, Any]:
        properties = self._properties_type()
        c.memset(c.byref(properties), 0x5A, c.sizeof(properties))  # all of it must be written
        try:
            self._call("getProperties", device, c.byref(properties))
        except NcclError:
            assert not any(bytes(properties)), "getProperties failed, and wrote something"
            raise
        found: dict[str, Any] = {}
        for name, _ in properties._fields_:
            value = getattr(properties, name)
            if isinstance(value, bytes):
                value = value.decode()
            elif isinstance(value, c.Structure):
                value = list(value.devs[: value.ndevs])
            found[name] = value
        return found

    def _context_first(self) -> list[Any]:
        if self.api < 11:
            return []
        return [self._contexts[-1] if self._contexts else _P()]

    def listen(self, handle: Any, device: int = 0) -> int:
        listener = _P()
        context = self._context_first()
        return self._make("listen", listener, *context, device, handle, c.byref(listener)) or 0

    def connect(self, handle: Any, device: int = 0) -> Optional[int]:
        """The comm; None: not ready. The plugin may write to the handle."""
        comm = _P()
        config = c.c_int(-1)
        middle = [c.addressof(config)] if self.api == 10 else []
        first, last = self._context_first(), [c.byref(_P())] if self.api >= 7 else []
        return self._make("connect", comm, *first, device, *middle, handle, c.byref(comm), *last)

    def accept(self, listener: int) -> Optional[int]:
        comm = _P()
        last = [c.byref(_P())] if self.api >= 7 else []
        return self._make("accept", comm, listener, c.byref(comm), *last)

    def register(self, comm: int, address: int, size: int, kind: int = PTR_HOST) -> int:
        mhandle = _P()
        return self._make("regMr", mhandle, comm, address, size, kind, c.byref(mhandle)) or 0

    def deregister(self, comm: int, mhandle: int) -> None:
        self._call("deregMr", comm, mhandle)

    def isend(self, comm: int, address: int, size: int, mhandle: int) -> Optional[int]:
        """The request; None: the plugin cannot take one now."""
        request = _P()
        tag = [7] if self.api >= 5 else []
        last = [*([None] if self.api >= 10 else []), c.byref(request)]
        return self._make("isend", request, comm, address, size, *tag, mhandle, *last)

    def irecv(
        self, comm: int, address: int, size: int, mhandle: int, entry: int = 0x5A5A, count: int = 1
    ) -> Optional[int]:
        """entry: what *request holds before the call (1: NCCL's optional completion)."""
        request = _P()
        if self.api == 4:
            place = [comm, address, size, mhandle, c.byref(request)]
            return self._make("irecv", request, *place, held=entry)
        kind = c.c_size_t if self.api >= 9 else _INT
        profiler = [(_P * count)()] if self.api >= 10 else []
        return self._make(
            "irecv",
            request,
            comm,
            count,
            (_P * count)(*[address] * count),
            (kind * count)(*[size] * count),
            (_INT * count)(*[7] * count),
            (_P * count)(*[mhandle] * count),
            *profiler,
            c.byref(request),
            held=entry,
        )

    def iflush(self, comm: int, address: int, size: int, mhandle: int) -> Optional[int]:
        request = _P()
        place: list[Any] = [address, size, mhandle]
        if self.api >= 5:
            place = [1, (_P * 1)(address), (_INT * 1)(size), (_P * 1)(mhandle)]
        return self._make("iflush", request, comm, *place, c.byref(request))

    def test(self, request: int) -> Optional[int]:
        """The bytes transferred; None: the request is not done."""
        done, size = _INT(), _INT(-1)
        over = self._make("test", done, request, c.byref(done), c.byref(size))
        return size.value if over else None

    def null_calls(self, comm: int) -> dict[str, int]:
        """The code of each call that NCCL may make with a NULL object, which it has after a failed
        call. comm: a comm for deregMr with a NULL memory handle, or 0."""
        calls: dict[str, tuple[Any, ...]] = {
            "accept": (self.accept, 0),
            "regMr": (self.register, 0, 4096, 1),
            "deregMr": (self.deregister, comm, 0),
            "isend": (self.isend, 0, 4096, 1, 0),
            "irecv": (self.irecv, 0, 4096, 1, 0),
            "iflush": (self.iflush, 0, 4096, 1, 0),
            "test": (self.test, 0),
            "closeSend": (self.close_send, 0),
            "closeRecv": (self.close_receive, 0),
            "closeListen": (self.close_listener, 0),
        }
        codes = {}
        for name, (call, *arguments) in calls.items():
            try:
                call(*arguments)
                codes[name] = SUCCESS
            except NcclError as error:
                codes[name] = error.code
        return codes

    def close_send(self, comm: int) -> None:
        self._call("closeSend", comm)

    def close_receive(self, comm: int) -> None:
        self._call("closeRecv", comm)

    def close_listener(self, listener: int) -> None:
        self._call("closeListen", listener)
