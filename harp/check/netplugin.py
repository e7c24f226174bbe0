# SPDX-License-Identifier: Apache-2.0
"""HARP's plugin, called as NCCL calls it: version 8 of NCCL's net interface, in ctypes.

All releases of HARP export version 8, the newest that needs no context and no profiler. No call
blocks, except init and the close functions, which have bounds of their own.
"""

from __future__ import annotations

import ctypes as c
import re
from collections import deque
from pathlib import Path
from typing import Any, Optional

API = 8
HANDLE_SIZE = 128
PTR_HOST = 1
WARN = 2  # NCCL's level of a warning
KEPT_LINES = 64

_P = c.c_void_p
_PP = c.POINTER(c.c_void_p)
_INT = c.c_int
_INTP = c.POINTER(c.c_int)
_LOGGER = c.CFUNCTYPE(None, _INT, c.c_ulong, c.c_char_p, _INT, c.c_char_p, c.c_char_p)
_RELEASE = re.compile(r"^HARP (\S+): device ")


def _call(*arguments: Any) -> Any:
    return c.CFUNCTYPE(_INT, *arguments)


class _Net(c.Structure):
    """ncclNet_v8_t."""

    _fields_ = [
        ("name", c.c_char_p),
        ("init", _call(_LOGGER)),
        ("devices", _call(_INTP)),
        ("getProperties", _P),
        ("listen", _call(_INT, _P, _PP)),
        ("connect", _call(_INT, _P, _PP, _PP)),
        ("accept", _call(_P, _PP, _PP)),
        ("regMr", _call(_P, _P, c.c_size_t, _INT, _PP)),
        ("regMrDmaBuf", _P),
        ("deregMr", _call(_P, _P)),
        ("isend", _call(_P, _P, _INT, _INT, _P, _PP)),
        ("irecv", _call(_P, _INT, _PP, _INTP, _INTP, _PP, _PP)),
        ("iflush", _P),
        ("test", _call(_P, _INTP, _INTP)),
        ("closeSend", _call(_P)),
        ("closeRecv", _call(_P)),
        ("closeListen", _call(_P)),
    ]


class PluginError(RuntimeError):
    """The plugin refused a call. The text has its last log lines, which name the remedy."""


class Plugin:
    """The plugin of this process. Only one thread may call it. The lines that it logs are in
    `warnings`; `release` comes from its log, "" if it has not said it."""

    def __init__(self, path: Path) -> None:
        """Loads it. Raises PluginError."""
        self.path = path
        self.release = ""
        self.warnings: deque[str] = deque(maxlen=KEPT_LINES)
        self._logger = _LOGGER(self._log)  # the plugin calls it until the process ends
        self._done, self._size = _INT(), _INT()
        self._out = _P()
        try:
            library = c.CDLL(str(path), mode=c.DEFAULT_MODE)
            self._net = _Net.in_dll(library, f"ncclNetPlugin_v{API}")
        except (OSError, ValueError) as failure:
            raise PluginError(f"{path} cannot be loaded: {failure}") from failure

    def _log(self, level: int, _: int, __: bytes, ___: int, ____: bytes, text: bytes) -> None:
        # HARP formats its lines itself: the format is "%s".
        said = (text or b"").decode(errors="replace")
        found = _RELEASE.match(said)
        if found:
            self.release = found[1]
        if level <= WARN:
            self.warnings.append(said)

    def said(self, about: str = "") -> str:
        """The last warning that contains a text, or "" if there is none."""
        return next((line for line in reversed(self.warnings) if about in line), "")

    def _check(self, call: str, code: int) -> None:
        if code:
            raise PluginError(self.said() or f"{call} of {self.path}: ncclResult {code}")

    def init(self) -> int:
        """Starts it. Returns the number of its devices. Raises PluginError if it declines."""
        code = self._net.init(self._logger)
        if code:
            # The plugin goes on with what NCCL does next, and here is no NCCL.
            why = self.said().partition("; NCCL goes on without HARP")[0]
            raise PluginError(why or f"init of {self.path}: ncclResult {code}")
        count = _INT()
        self._check("devices", self._net.devices(c.byref(count)))
        if count.value < 1:
            raise PluginError(self.said() or f"{self.path} has no devices")
        return count.value

    def listen(self, device: int) -> tuple[int, bytes]:
        """A listener and its handle. Raises PluginError."""
        handle, listener = c.create_string_buffer(HANDLE_SIZE), _P()
        self._check("listen", self._net.listen(device, handle, c.byref(listener)))
        return listener.value or 0, handle.raw

    def connect(self, device: int, handle: Any) -> Optional[int]:
        """A sending comm; None: call again. handle: a ctypes buffer of HANDLE_SIZE, which the
        plugin changes. Raises PluginError."""
        comm, device_comm = _P(), _P()
        code = self._net.connect(device, handle, c.byref(comm), c.byref(device_comm))
        self._check("connect", code)
        return comm.value

    def accept(self, listener: int) -> Optional[int]:
        """A receiving comm; None: call again. Raises PluginError."""
        comm, device_comm = _P(), _P()
        self._check("accept", self._net.accept(listener, c.byref(comm), c.byref(device_comm)))
        return comm.value

    def register(self, comm: int, address: int, size: int) -> int:
        """Registers host memory, bytes, for a comm. Raises PluginError."""
        mhandle = _P()
        self._check("regMr", self._net.regMr(comm, address, size, PTR_HOST, c.byref(mhandle)))
        return mhandle.value or 0

    def isend(self, comm: int, address: int, size: int, mhandle: int) -> Optional[int]:
        """A request; None: the comm takes none now. Raises PluginError."""
        out = self._out
        out.value = None
        self._check("isend", self._net.isend(comm, address, size, 0, mhandle, c.byref(out)))
        return out.value

    def irecv(self, comm: int, address: int, size: int, mhandle: int) -> Optional[int]:
        """A request; None: the comm takes none now. Raises PluginError."""
        out = self._out
        out.value = None
        code = self._net.irecv(
            comm, 1, (_P * 1)(address), (_INT * 1)(size), (_INT * 1)(0), (_P * 1)(mhandle),
            c.byref(out),
        )  # fmt: skip
        self._check("irecv", code)
        return out.value

    def test(self, request: int) -> Optional[int]:
        """The bytes of a request that is done; None: it is not. Raises PluginError."""
        code = self._net.test(request, c.byref(self._done), c.byref(self._size))
        self._check("test", code)
        return self._size.value if self._done.value else None

    def close_send(self, comm: int) -> None:
        """Closes a sending comm."""
        self._net.closeSend(comm)

    def close_receive(self, comm: int) -> None:
        """Closes a receiving comm."""
        self._net.closeRecv(comm)

    def close_listener(self, listener: int) -> None:
        """Closes a listener."""
        self._net.closeListen(listener)
