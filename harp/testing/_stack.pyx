# SPDX-License-Identifier: Apache-2.0
"""Python binding of the stack's public header (harp/stack.h).

A `Stack` is one stack: frames enter by `input` and leave in the list `output`; `advance` sets the
time. `Socket` has the methods of Python's sockets and never blocks. A negative errno of the stack
becomes an OSError of the matching subclass (BlockingIOError for EAGAIN and EINPROGRESS,
ConnectionRefusedError, TimeoutError, ...).

Threads: a stack belongs to one thread. No function locks or releases the GIL.
"""

import errno
import os
import socket as _socket
import struct

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport UINT64_MAX, uint16_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from harp.testing.tcp_info import unpack_tcp_info

include "config.pxi"


cdef extern from "<sys/socket.h>":
    ctypedef unsigned int socklen_t
    struct sockaddr:
        pass


cdef extern from "harp/stack.h":
    struct harp_stack_callbacks:
        void *user
        void (*output)(void *user, const iovec *iov, int count) noexcept

    int harp_stack_create(harp_stack **stack, const harp_stack_config *config,
                          const harp_stack_callbacks *callbacks)
    void harp_stack_destroy(harp_stack *stack)
    int harp_stack_input(harp_stack *stack, const void *frame, size_t length)
    void harp_stack_advance(harp_stack *stack, uint64_t now_ns)
    uint64_t harp_stack_next_deadline(harp_stack *stack)

    int harp_tcp_socket(harp_stack *stack)
    int harp_tcp_bind(harp_stack *stack, int sock, const sockaddr *address, socklen_t length)
    int harp_tcp_listen(harp_stack *stack, int sock, int backlog)
    int harp_tcp_accept(harp_stack *stack, int sock, sockaddr *address, socklen_t *length)
    int harp_tcp_connect(harp_stack *stack, int sock, const sockaddr *address, socklen_t length)
    int harp_tcp_shutdown(harp_stack *stack, int sock, int how)
    int harp_tcp_close(harp_stack *stack, int sock)
    int harp_tcp_getsockopt(harp_stack *stack, int sock, int level, int option, void *value,
                            socklen_t *length)
    int harp_tcp_setsockopt(harp_stack *stack, int sock, int level, int option,
                            const void *value, socklen_t length)
    ssize_t harp_tcp_send(harp_stack *stack, int sock, const void *data, size_t length, int flags)
    ssize_t harp_tcp_recv(harp_stack *stack, int sock, void *data, size_t length, int flags)
    int harp_tcp_poll(harp_stack *stack, int sock)
    int harp_stack_input_merged(harp_stack *stack, const void *frame, size_t length,
                                uint16_t gso_size)
    const char *harp_stack_counter_name(unsigned int index)
    uint64_t harp_stack_counter(harp_stack *stack, unsigned int index)
    int harp_tcp_getsockname(harp_stack *stack, int sock, sockaddr *address, socklen_t *length)
    int harp_tcp_getpeername(harp_stack *stack, int sock, sockaddr *address, socklen_t *length)
    int harp_tcp_ioctl(harp_stack *stack, int sock, unsigned long request, int *value)
    int harp_tcp_ready(harp_stack *stack, int *sockets, int max)


LINK_IP = 0
LINK_ETHERNET = 1


cdef bytes _sockaddr(address):
    """(host, port) to a struct sockaddr_in."""
    host, port = address
    return struct.pack("=H", _socket.AF_INET) + struct.pack(
        "!H4s8x", port, _socket.inet_aton(host))


cdef tuple _address_of(bytes raw):
    """A struct sockaddr_in to (host, port)."""
    port, host = struct.unpack("!2xH4s8x", raw)
    return _socket.inet_ntoa(host), port


cdef void _collect(void *user, const iovec *iov, int count) noexcept:
    (<Stack>user)._gather(iov, count)


cdef class Stack:
    """A stack.

    Keywords are the fields of struct harp_stack_config in their units (bytes,
    microseconds, ...). Addresses, the MAC and `cc` are text, `seed` is a pair of
    integers. Other fields keep the stack's default. Raises OSError (EINVAL, ENOMEM)
    if the stack refuses them.

    `output` collects the frames that the stack has sent, the oldest first; `take`
    returns and clears it. `now` is the time of the last advance, ns. `address` is
    the given address of the stack.
    """

    cdef harp_stack *_stack
    cdef public list output
    cdef readonly object now
    cdef readonly object address

    def __cinit__(self, *, cc=None, **fields):
        cdef harp_stack_config config
        cdef harp_stack_callbacks callbacks
        cdef bytes name
        self.output = []
        self.now = 0
        self.address = fields.get("address")
        harp_stack_config_default(&config)
        _fill(&config, fields)
        if cc is not None:
            name = cc.encode()
            config.cc = name
        callbacks.user = <void *>self
        callbacks.output = _collect
        _check("harp_stack_create", harp_stack_create(&self._stack, &config, &callbacks))

    def __dealloc__(self):
        if self._stack is not NULL:
            # Destruction must not send frames: this object can no longer collect them.
            harp_stack_destroy(self._stack)

    cdef _gather(self, const iovec *iov, int count):
        cdef int i
        cdef list parts = []
        for i in range(count):
            parts.append(PyBytes_FromStringAndSize(<const char *>iov[i].iov_base,
                                                   <Py_ssize_t>iov[i].iov_len))
        self.output.append(b"".join(parts))

    def input(self, bytes frame not None, int gso_size=0):
        """Receives one complete frame. Returns False if the stack drops it as malformed.

        gso_size: the payload bytes of each merged segment; 0 for a single segment.
        The stack gets a copy in memory of the exact size, so that a memory checker
        notices a read beyond the end.
        """
        cdef size_t length = len(frame)
        cdef const char *data = frame
        cdef char *copy = <char *>malloc(length if length else 1)
        cdef int result
        if copy is NULL:
            raise MemoryError
        memcpy(copy, data, length)
        if gso_size:
            result = harp_stack_input_merged(self._stack, copy, length, gso_size)
        else:
            result = harp_stack_input(self._stack, copy, length)
        free(copy)
        if result == -errno.EINVAL:
            return False
        _check("harp_stack_input", result)
        return True

    def advance(self, now_ns):
        """Sets the time (ns, never backwards) and runs the timers that are due."""
        self.now = now_ns
        harp_stack_advance(self._stack, now_ns)

    def next_deadline(self):
        """The time of the next timer, ns; None: never."""
        cdef uint64_t deadline = harp_stack_next_deadline(self._stack)
        return None if deadline == UINT64_MAX else deadline

    def take(self):
        """The frames sent since the last take, oldest first."""
        frames = self.output
        self.output = []
        return frames

    def counters(self):
        """The counters that are not zero, by name."""
        cdef unsigned int index = 0
        counters = {}
        while harp_stack_counter_name(index) is not NULL:
            value = harp_stack_counter(self._stack, index)
            if value:
                counters[harp_stack_counter_name(index).decode()] = value
            index += 1
        return counters

    def ready(self, int most=64):
        """The numbers of at most `most` sockets (up to 64) with new poll events."""
        cdef int numbers[64]
        cdef int count = harp_tcp_ready(self._stack, numbers, min(most, 64))
        return [numbers[i] for i in range(count)]

    def socket(self):
        """A new TCP socket. Raises OSError: EMFILE or ENOMEM if there is no room."""
        return Socket(self, _check("harp_tcp_socket", harp_tcp_socket(self._stack)))


cdef class Socket:
    """A TCP socket of a stack, made by Stack.socket or Socket.accept.

    The end of the object does not close the socket.
    """

    cdef readonly Stack stack
    cdef readonly int number

    def __init__(self, Stack stack not None, int number):
        self.stack = stack
        self.number = number

    def __repr__(self):
        return f"<harp socket {self.number}>"

    def bind(self, address):
        cdef bytes raw = _sockaddr(address)
        cdef const char *data = raw
        _check("harp_tcp_bind",
               harp_tcp_bind(self.stack._stack, self.number, <const sockaddr *>data, len(raw)))

    def listen(self, int backlog=16):
        _check("harp_tcp_listen", harp_tcp_listen(self.stack._stack, self.number, backlog))

    def accept(self):
        """(socket, (host, port)). Raises BlockingIOError if no connection is ready."""
        cdef char raw[16]
        cdef socklen_t length = 16
        number = _check("harp_tcp_accept", harp_tcp_accept(
            self.stack._stack, self.number, <sockaddr *>raw, &length))
        return Socket(self.stack, number), _address_of(PyBytes_FromStringAndSize(raw, 16))

    def getsockname(self):
        """The local (host, port)."""
        cdef char raw[16]
        cdef socklen_t length = 16
        _check("harp_tcp_getsockname", harp_tcp_getsockname(
            self.stack._stack, self.number, <sockaddr *>raw, &length))
        return _address_of(PyBytes_FromStringAndSize(raw, 16))

    def getpeername(self):
        """The peer's (host, port)."""
        cdef char raw[16]
        cdef socklen_t length = 16
        _check("harp_tcp_getpeername", harp_tcp_getpeername(
            self.stack._stack, self.number, <sockaddr *>raw, &length))
        return _address_of(PyBytes_FromStringAndSize(raw, 16))

    def ioctl(self, unsigned long request):
        """The value of termios.FIONREAD (SIOCINQ) or termios.TIOCOUTQ (SIOCOUTQ)."""
        cdef int value = 0
        _check("harp_tcp_ioctl", harp_tcp_ioctl(
            self.stack._stack, self.number, request, &value))
        return value

    def connect(self, address):
        """Starts to connect. Raises BlockingIOError (EINPROGRESS) on success; see connect_ex."""
        _check("harp_tcp_connect", -self.connect_ex(address))

    def connect_ex(self, address):
        """Like connect, but returns the errno: 0 or EINPROGRESS on success."""
        cdef bytes raw = _sockaddr(address)
        cdef const char *data = raw
        return -harp_tcp_connect(self.stack._stack, self.number, <const sockaddr *>data, len(raw))

    def shutdown(self, int how):
        _check("harp_tcp_shutdown", harp_tcp_shutdown(self.stack._stack, self.number, how))

    def close(self):
        _check("harp_tcp_close", harp_tcp_close(self.stack._stack, self.number))

    def setsockopt(self, int level, int option, value):
        """value: an int (four bytes) or the bytes of a structure."""
        cdef bytes raw = value if isinstance(value, bytes) else struct.pack("=i", value)
        cdef const char *data = raw
        _check("harp_tcp_setsockopt", harp_tcp_setsockopt(
            self.stack._stack, self.number, level, option, data, len(raw)))

    def getsockopt(self, int level, int option, int size=0):
        """An int, or with `size` the bytes of a structure of at most that size."""
        cdef char raw[512]
        cdef socklen_t length = size if size else 4
        if length > sizeof(raw):
            raise ValueError(f"size {size}: at most {sizeof(raw)} bytes are possible")
        _check("harp_tcp_getsockopt", harp_tcp_getsockopt(
            self.stack._stack, self.number, level, option, raw, &length))
        value = PyBytes_FromStringAndSize(raw, length)
        return value if size else struct.unpack("=i", value)[0]

    def tcp_info(self):
        """Linux's struct tcp_info as a dict, with the fields that the stack filled."""
        return unpack_tcp_info(self.getsockopt(_socket.IPPROTO_TCP, _socket.TCP_INFO, 512))

    def error(self):
        """SO_ERROR: the pending errno, which this call clears."""
        return self.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)

    def send(self, bytes data not None, int flags=0):
        """The number of bytes taken. Raises BlockingIOError if there is no room."""
        cdef const char *raw = data
        return _check("harp_tcp_send", harp_tcp_send(
            self.stack._stack, self.number, raw, len(data), flags))

    def recv(self, Py_ssize_t size, int flags=0):
        """Up to size bytes; b"" at the end of the stream. Raises BlockingIOError if there are
        none."""
        cdef char *raw = <char *>malloc(size if size > 0 else 1)
        cdef ssize_t got
        if raw is NULL:
            raise MemoryError
        try:
            got = harp_tcp_recv(self.stack._stack, self.number, raw, size, flags)
            _check("harp_tcp_recv", got)
            return PyBytes_FromStringAndSize(raw, got)
        finally:
            free(raw)

    def poll(self):
        """POLLIN | POLLOUT | POLLHUP | POLLRDHUP | POLLERR, as select.poll's."""
        return _check("harp_tcp_poll", harp_tcp_poll(self.stack._stack, self.number))
