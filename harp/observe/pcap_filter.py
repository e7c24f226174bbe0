# SPDX-License-Identifier: Apache-2.0
"""Filter expressions of pcap-filter(7), compiled by the system's libpcap."""

from __future__ import annotations

import ctypes

from harp.observe.packet_ring import Instruction

_NAMES = ("libpcap.so.0.8", "libpcap.so.1")  # those of Debian and of Fedora
_DLT_EN10MB = 1
_LONGEST = 262144  # bytes of a frame
_NETMASK_UNKNOWN = 0xFFFFFFFF


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("true", ctypes.c_uint8),
        ("false", ctypes.c_uint8),
        ("operand", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint), ("code", ctypes.POINTER(_Instruction)))


def _library() -> ctypes.CDLL:
    for name in _NAMES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.pcap_open_dead.restype = ctypes.c_void_p
        library.pcap_open_dead.argtypes = [ctypes.c_int, ctypes.c_int]
        library.pcap_compile.argtypes = [
            ctypes.c_void_p,
            ctypes.POINTER(_Program),
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_uint32,
        ]
        library.pcap_geterr.restype = ctypes.c_char_p
        library.pcap_geterr.argtypes = [ctypes.c_void_p]
        library.pcap_freecode.argtypes = [ctypes.POINTER(_Program)]
        library.pcap_close.argtypes = [ctypes.c_void_p]
        return library
    raise LookupError(
        "a filter expression needs libpcap, which is not here: install libpcap0.8 (Debian, Ubuntu) "
        "or libpcap (Fedora), or use --host, --port, --flow and --direction"
    )


def compiled(expression: str) -> list[Instruction]:
    """The BPF program of an expression for Ethernet frames; it returns 0 for a frame that does not
    fit. Raises LookupError without libpcap, ValueError for a wrong expression."""
    library = _library()
    handle = library.pcap_open_dead(_DLT_EN10MB, _LONGEST)
    if not handle:
        raise MemoryError("libpcap has no memory for a filter")
    program = _Program()
    try:
        if library.pcap_compile(handle, program, expression.encode(), 1, _NETMASK_UNKNOWN):
            raise ValueError(library.pcap_geterr(handle).decode(errors="replace"))
        code = [program.code[number] for number in range(program.length)]
        made = [(one.code, one.true, one.false, one.operand) for one in code]
        library.pcap_freecode(program)
        return made
    finally:
        library.pcap_close(handle)
