# SPDX-License-Identifier: Apache-2.0
"""Python binding of the stack's interface for engines (harp/stack/flow.h).

A test drives a `FlowStack` like an engine: it passes bursts of frames to `receive` and ends each
with `flush`. Output frames carry their offload requests. A `Flow` gives the stack references to
its own memory when it is pulled. It overwrites that memory once it is acknowledged, so that a later
read by the stack shows as wrong bytes.

Threads: one. No function locks or releases the GIL.
"""

import collections
import os
import socket as _socket

from cpython.bytearray cimport PyByteArray_AsString
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport UINT64_MAX
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

include "config.pxi"


cdef extern from *:
    ctypedef bint cbool "_Bool"


cdef extern from "harp/frame.h":
    enum:
        HARP_OFFLOAD_TX_CHECKSUM
        HARP_OFFLOAD_TSO
        HARP_OFFLOAD_RX_CHECKSUM
        HARP_OFFLOAD_LRO

    struct harp_tx_frame:
        const iovec *iov
        uint16_t iov_count
        uint16_t header_length
        uint16_t segment_size
        uint16_t checksum_start
        uint16_t checksum_offset
        uint8_t checksum_needed
        uint32_t length

    struct harp_rx_frame:
        const uint8_t *header
        uint32_t header_length
        const uint8_t *payload
        uint32_t payload_length
        uint16_t segment_size
        uint8_t checksum_good


cdef extern from "harp/stack/flow.h":
    struct harp_tcp:
        pass

    struct harp_listener:
        pass

    struct harp_flow_ops:
        int (*accept)(void *user, harp_tcp *tcp) noexcept
        void (*established)(void *user, harp_tcp *tcp) noexcept
        void (*pull)(void *user, harp_tcp *tcp, uint32_t room) noexcept
        size_t (*deliver)(void *user, harp_tcp *tcp, const uint8_t *data, size_t length) noexcept
        uint8_t *(*rx_buffer)(void *user, harp_tcp *tcp, uint32_t length) noexcept
        void (*acked)(void *user, harp_tcp *tcp, uint32_t size) noexcept
        void (*readable)(void *user, harp_tcp *tcp) noexcept
        void (*closed)(void *user, harp_tcp *tcp, int error) noexcept

    struct harp_stack_io:
        void *user
        int (*transmit)(void *user, const harp_tx_frame *frame) noexcept
        uint32_t offloads
        uint32_t max_frame
        cbool (*admits)(void *user, uint32_t address) noexcept
        cbool only_asks
        cbool tentative
        uint64_t *counters

    struct harp_endpoint:
        uint32_t address
        uint16_t port

    ctypedef struct flow_view "struct harp_flow_view":
        uint8_t state
        uint32_t cwnd
        uint32_t ssthresh
        uint32_t send_window
        uint32_t receive_window
        uint32_t mss
        uint32_t srtt_us
        uint32_t rttvar_us
        uint32_t min_rtt_us
        uint32_t rto_us
        uint32_t in_flight
        uint32_t retransmits
        uint32_t unacked
        uint64_t bytes_in
        uint64_t bytes_out

    int harp_stack_create_io(harp_stack **stack, const harp_stack_config *config,
                             const harp_stack_io *io)
    void harp_stack_destroy(harp_stack *stack)
    int harp_stack_receive(harp_stack *stack, const harp_rx_frame *frame)
    void harp_stack_flush(harp_stack *stack)
    void harp_stack_advance(harp_stack *stack, uint64_t now_ns)
    void harp_stack_set_time(harp_stack *stack, uint64_t now_ns)
    void harp_stack_account_pause(harp_stack *stack, uint64_t pause_ns)
    uint64_t harp_stack_next_deadline(harp_stack *stack)
    void harp_stack_probe(harp_stack *stack)
    void harp_flow_probe(harp_tcp *tcp)
    int harp_stack_use_address(harp_stack *stack)
    cbool harp_stack_conflict(const harp_stack *stack, uint8_t *mac)
    void harp_stack_announce(harp_stack *stack)
    int harp_flow_connect(harp_stack *stack, uint16_t local_port, harp_endpoint peer,
                          const harp_flow_ops *ops, void *user, harp_tcp **tcp)
    int harp_flow_listen(harp_stack *stack, uint16_t local_port, uint32_t backlog,
                         const harp_flow_ops *ops, void *user, harp_listener **listener)
    void harp_flow_unlisten(harp_listener *listener)
    void harp_flow_attach(harp_tcp *tcp, const harp_flow_ops *ops, void *user)
    int harp_flow_push(harp_tcp *tcp, const void *data, uint32_t length, cbool end)
    uint32_t harp_flow_room(const harp_tcp *tcp)
    void harp_flow_ready(harp_tcp *tcp)
    void harp_flow_resume(harp_tcp *tcp)
    void harp_flow_close(harp_tcp *tcp)
    void harp_flow_abort(harp_tcp *tcp)
    void harp_flow_set_harp_peer(harp_tcp *tcp, uint32_t rto_min_us)
    void harp_flow_share_ack(harp_tcp *tcp, bint more)
    bint harp_flow_try_share_ack(harp_tcp *tcp, uint32_t bytes)
    void harp_flow_set_timeout(harp_tcp *tcp, uint32_t timeout_ms)
    void harp_flow_set_keepalive(harp_tcp *tcp, uint32_t idle_ms, uint32_t interval_ms,
                                 uint32_t probes)
    cbool harp_flow_rcv_queue_empty(const harp_tcp *tcp)
    uint16_t harp_flow_header_length(const harp_tcp *tcp)
    cbool harp_flow_at_end(const harp_tcp *tcp)
    cbool harp_flow_drained(const harp_tcp *tcp)
    uint16_t harp_flow_local_port(const harp_tcp *tcp)
    void get_view "harp_flow_view"(const harp_tcp *tcp, flow_view *view)


OFFLOADS = {
    "tx_checksum": HARP_OFFLOAD_TX_CHECKSUM,
    "tso": HARP_OFFLOAD_TSO,
    "rx_checksum": HARP_OFFLOAD_RX_CHECKSUM,
    "lro": HARP_OFFLOAD_LRO,
}

TxFrame = collections.namedtuple(
    "TxFrame",
    "data header_length segment_size checksum_start checksum_offset checksum_needed pieces",
)


cdef int _transmit(void *user, const harp_tx_frame *frame) noexcept:
    return (<FlowStack>user)._take(frame)


cdef cbool _admits(void *user, uint32_t address) noexcept:
    return address in (<FlowStack>user)._peers


cdef int _accept(void *user, harp_tcp *tcp) noexcept:
    return (<Listener>user)._accepted(tcp)


cdef void _established(void *user, harp_tcp *tcp) noexcept:
    (<Flow>user).established = True


cdef void _pull(void *user, harp_tcp *tcp, uint32_t room) noexcept:
    (<Flow>user)._pulled(room)


cdef size_t _deliver(void *user, harp_tcp *tcp, const uint8_t *data, size_t length) noexcept:
    return (<Flow>user)._delivered(data, length)


cdef uint8_t *_rx_buffer(void *user, harp_tcp *tcp, uint32_t length) noexcept:
    return (<Flow>user)._placed(length)


cdef void _acked(void *user, harp_tcp *tcp, uint32_t size) noexcept:
    (<Flow>user)._released(size)


cdef void _readable(void *user, harp_tcp *tcp) noexcept:
    cdef Flow flow = <Flow>user
    flow.readable += 1
    if flow.then is not None:
        flow.then()


cdef void _closed(void *user, harp_tcp *tcp, int error) noexcept:
    cdef Flow flow = <Flow>user
    flow._ended(error)
    if flow.then is not None:
        flow.then()


cdef harp_flow_ops listener_ops
listener_ops.accept = _accept
cdef harp_flow_ops flow_ops
flow_ops.established = _established
flow_ops.pull = _pull
flow_ops.deliver = _deliver
flow_ops.rx_buffer = _rx_buffer
flow_ops.acked = _acked
flow_ops.readable = _readable
flow_ops.closed = _closed


cdef class FlowStack:
    """A stack with the interface for engines.

    offloads: names of OFFLOADS. max_frame: bytes, with tso. only_asks: the kernel
    or another process answers ARP and ICMP. tentative: the address is tentative
    until use_address. peers: the addresses that may connect, None: all. The other
    keywords are those of harp.testing._stack.Stack.
    `output` collects TxFrame tuples. `room` is the number of frames that the device
    accepts before it returns EAGAIN (None: any number).
    """

    cdef harp_stack *_stack
    cdef set _peers
    cdef public list output
    cdef public object room
    cdef readonly object now
    cdef readonly object address
    cdef readonly list flows
    cdef readonly list listeners

    def __cinit__(self, *, offloads=(), max_frame=65535, only_asks=False, tentative=False,
                  peers=None, **fields):
        cdef harp_stack_config config
        cdef harp_stack_io io
        self.output = []
        self.room = None
        self.now = 0
        self.flows = []
        self.listeners = []
        self.address = fields.get("address")
        harp_stack_config_default(&config)
        _fill(&config, fields)
        memset(&io, 0, sizeof(io))
        io.user = <void *>self
        io.transmit = _transmit
        io.offloads = sum(OFFLOADS[name] for name in offloads)
        io.max_frame = max_frame
        io.only_asks = only_asks
        io.tentative = tentative
        if peers is not None:
            self._peers = {_address(peer) for peer in peers}
            io.admits = _admits
        _check("harp_stack_create_io", harp_stack_create_io(&self._stack, &config, &io))

    def __dealloc__(self):
        if self._stack is not NULL:
            harp_stack_destroy(self._stack)

    cdef int _take(self, const harp_tx_frame *frame) except -1:
        cdef list parts = []
        cdef int i
        if self.room is not None:
            if self.room == 0:
                return -11  # EAGAIN
            self.room -= 1
        for i in range(frame.iov_count):
            parts.append(PyBytes_FromStringAndSize(<const char *>frame.iov[i].iov_base,
                                                   <Py_ssize_t>frame.iov[i].iov_len))
        data = b"".join(parts)
        assert len(data) == frame.length, "the gather list and the frame's length disagree"
        assert len(parts[0]) >= frame.header_length, "the headers are not all in the first piece"
        self.output.append(TxFrame(
            data, frame.header_length, frame.segment_size, frame.checksum_start,
            frame.checksum_offset, bool(frame.checksum_needed), len(parts)))
        return 0

    def receive(self, bytes header not None, bytes payload=b"", int segment_size=0,
                bint checksum_good=False):
        """Receives one frame of a burst, in one piece or two. Returns whether the stack took it."""
        cdef harp_rx_frame frame
        cdef size_t first = len(header), second = len(payload)
        cdef const char *one = header
        cdef const char *two = payload
        cdef char *copy = <char *>malloc(first if first else 1)
        cdef char *rest = <char *>malloc(second if second else 1)
        cdef int result
        memcpy(copy, one, first)
        memcpy(rest, two, second)
        memset(&frame, 0, sizeof(frame))
        frame.header = <const uint8_t *>copy
        frame.header_length = <uint32_t>first
        frame.payload = <const uint8_t *>rest if second else NULL
        frame.payload_length = <uint32_t>second
        frame.segment_size = <uint16_t>segment_size
        frame.checksum_good = checksum_good
        result = harp_stack_receive(self._stack, &frame)
        free(copy)
        free(rest)
        return result == 0

    def flush(self):
        """Ends a burst."""
        harp_stack_flush(self._stack)

    def advance(self, now_ns):
        self.now = now_ns
        harp_stack_advance(self._stack, now_ns)

    def set_time(self, now_ns):
        self.now = now_ns
        harp_stack_set_time(self._stack, now_ns)

    def held_up(self, pause_ns):
        """Accounts for a pause of this host: the stack was not driven for pause_ns until now."""
        harp_stack_account_pause(self._stack, pause_ns)

    def next_deadline(self):
        """The time of the next timer, ns; None: never."""
        cdef uint64_t deadline = harp_stack_next_deadline(self._stack)
        return None if deadline == UINT64_MAX else deadline

    def probe(self):
        harp_stack_probe(self._stack)

    def use_address(self):
        """Ends the tentative state of the address. Raises OSError: EADDRINUSE."""
        _check("harp_stack_use_address", harp_stack_use_address(self._stack))

    def conflict(self):
        """The hardware address of a host that has claimed our address; None without a conflict."""
        cdef uint8_t mac[6]
        if not harp_stack_conflict(self._stack, mac):
            return None
        return ":".join(f"{byte:02x}" for byte in mac[:6])

    def announce(self):
        harp_stack_announce(self._stack)

    def take(self):
        """The frames sent since the last take."""
        frames = self.output
        self.output = []
        return frames

    def counters(self):
        """The counters that are not zero, by name."""
        return _counters(self._stack)

    def listen(self, int port, int backlog=16):
        """A new Listener. Raises OSError: EADDRINUSE, ENOBUFS."""
        return Listener(self, port, backlog)

    def connect(self, str address, int port, int local_port=0):
        """A Flow that starts to connect. Raises OSError: EADDRINUSE, ENOBUFS, ENETUNREACH."""
        cdef Flow flow = Flow(self)
        cdef harp_endpoint peer
        peer.address = _address(address)
        peer.port = <uint16_t>port
        _check("harp_flow_connect", harp_flow_connect(
            self._stack, <uint16_t>local_port, peer, &flow_ops, <void *>flow, &flow._tcp))
        self.flows.append(flow)
        return flow


cdef class Listener:
    """A listener; `accepted` lists its flows. refuse: a negative errno to refuse new ones."""

    cdef harp_listener *_listener
    cdef readonly FlowStack stack
    cdef readonly list accepted
    cdef public int refuse

    def __init__(self, FlowStack stack not None, int port, int backlog):
        self.stack = stack
        self.accepted = []
        _check("harp_flow_listen", harp_flow_listen(
            stack._stack, <uint16_t>port, <uint32_t>backlog, &listener_ops, <void *>self,
            &self._listener))
        stack.listeners.append(self)

    cdef int _accepted(self, harp_tcp *tcp) except -1:
        if self.refuse:
            return self.refuse
        cdef Flow flow = Flow(self.stack)
        flow._tcp = tcp
        flow.established = True
        self.stack.flows.append(flow)
        self.accepted.append(flow)
        harp_flow_attach(tcp, &flow_ops, <void *>flow)
        return 0

    def close(self):
        harp_flow_unlisten(self._listener)
        self._listener = NULL


cdef class Flow:
    """One connection.

    to_pull: pieces (bytes, whether a segment ends after it) for the stack's pulls. Each pull takes
    as many as there is room for, or one (one_by_one). limit: the number of bytes that deliver
    takes from now on (None: all). received: the bytes taken. places: None, or the memory for
    rx_buffer, with a place for each byte of the stream. acked: the number of acknowledged bytes.
    shares_acks: the acknowledgement of the bytes that deliver takes may wait for a later one.
    expects_more: these bytes do not end their message.
    closed: None, or the errno (0: orderly) of the call of closed. readable: the number of its
    calls. then: called after readable and closed.
    """

    cdef harp_tcp *_tcp
    cdef readonly FlowStack stack
    cdef public object to_pull
    cdef public bint one_by_one
    cdef object _held
    cdef list _overwritten
    cdef public object limit
    cdef public bint shares_acks, expects_more
    cdef readonly bytearray received
    cdef public bytearray places
    cdef readonly object acked
    cdef readonly object pushed
    cdef public bint established
    cdef public int readable
    cdef readonly object closed
    cdef public object then

    def __init__(self, FlowStack stack not None):
        self.stack = stack
        self.to_pull = collections.deque()
        self._held = collections.deque()
        self._overwritten = []
        self.received = bytearray()
        self.acked = self.pushed = 0

    cdef harp_tcp *_open(self) except NULL:
        if self._tcp is NULL:
            raise ValueError("the flow is closed: closed() was its last call")
        return self._tcp

    def push(self, bytes data not None, bint end=False):
        """Appends a reference to a copy, which is overwritten once acknowledged. Raises OSError:
        ENOBUFS, EPIPE."""
        cdef bytearray piece = bytearray(data)
        cdef char *start = PyByteArray_AsString(piece)
        _check("harp_flow_push", harp_flow_push(self._open(), start, <uint32_t>len(piece), end))
        if piece:
            self._held.append([piece, len(piece)])
        self.pushed += len(piece)

    cdef _pulled(self, uint32_t room):
        cdef Py_ssize_t given = 0
        while self.to_pull and given < room and harp_flow_room(self._tcp):
            data, end = self.to_pull.popleft()
            self.push(data, end)
            given += len(data)
            if self.one_by_one:
                break

    cdef size_t _delivered(self, const uint8_t *data, size_t length) except? 0:
        cdef size_t part = length
        if self.limit is not None:
            part = min(length, self.limit)
            self.limit -= part
        self.received += PyBytes_FromStringAndSize(<const char *>data, <Py_ssize_t>part)
        if self.shares_acks:
            harp_flow_share_ack(self._tcp, self.expects_more)
        return part

    cdef uint8_t *_placed(self, uint32_t length) except? NULL:
        if self.places is None or len(self.received) + length > len(self.places):
            return NULL
        return <uint8_t *>PyByteArray_AsString(self.places) + len(self.received)

    cdef _released(self, uint32_t size):
        cdef bytearray piece
        self.acked += size
        while size:
            entry = self._held[0]
            part = min(size, entry[1])
            entry[1] -= part
            size -= part
            if entry[1] == 0:
                piece = self._held.popleft()[0]
                memset(PyByteArray_AsString(piece), 0xDD, len(piece))
                self._overwritten.append(piece)

    cdef _ended(self, int error):
        self.closed = -error
        self._tcp = NULL

    def ready(self):
        harp_flow_ready(self._open())

    def resume(self):
        harp_flow_resume(self._open())

    def close(self):
        harp_flow_close(self._open())

    def abort(self):
        harp_flow_abort(self._open())
        self._tcp = NULL

    def trust(self, int rto_min_us):
        harp_flow_set_harp_peer(self._open(), <uint32_t>rto_min_us)

    def may_share_ack(self, int size):
        return bool(harp_flow_try_share_ack(self._open(), <uint32_t>size))

    def set_timeout(self, int timeout_ms):
        harp_flow_set_timeout(self._open(), <uint32_t>timeout_ms)

    def probe(self):
        """Sends a keepalive probe now."""
        harp_flow_probe(self._open())

    def set_keepalive(self, int idle_ms, int interval_ms, int probes):
        harp_flow_set_keepalive(self._open(), <uint32_t>idle_ms, <uint32_t>interval_ms,
                                <uint32_t>probes)

    def in_order(self):
        return bool(harp_flow_rcv_queue_empty(self._open()))

    def header_length(self):
        return harp_flow_header_length(self._open())

    def at_end(self):
        return bool(harp_flow_at_end(self._open()))

    def drained(self):
        return bool(harp_flow_drained(self._open()))

    def local_port(self):
        return harp_flow_local_port(self._open())

    def view(self):
        """struct harp_flow_view as a dict."""
        cdef flow_view seen
        get_view(self._open(), &seen)
        return seen
