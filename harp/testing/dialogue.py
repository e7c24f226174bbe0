# SPDX-License-Identifier: Apache-2.0
"""A dialogue: one stack and one scripted peer in virtual time.

A test lists the packets that the peer sends and those that the stack must answer. It reads like a
packet trace:

    d = Dialogue()
    listener = d.listen(80)
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1460)]))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="A", seq=1, ack=1))
    connection = d.accept(listener)

Packets are scapy's. Sequence and acknowledgement numbers, including SACK edges, are relative to the
initial sequence number. Times are milliseconds since the dialogue began. `send` fills in missing
fields: ports, the peer's next sequence number, an acknowledgement of all data in order, the window.
`expect` compares only the given fields. The packet must have no payload if the script has none.
PSH is compared only if the script sets it.

Every frame of the stack is checked: lengths, checksums, options. `send` fails while a frame of the
stack is unexpected: call `expect`, `drain` or `ignore` first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from scapy.layers.inet import ICMP, IP, TCP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import NoPayload, Packet, Raw

from harp.observe.pcapng import write_pcapng
from harp.testing._stack import LINK_ETHERNET, LINK_IP, Socket, Stack
from harp.testing.frames import BadFrame, Segment, build_ipv4, check_frame
from harp.testing.peer import DialogueError, Flow, Sink
from harp.testing.segments import (
    describe,
    flag_bits,
    mismatch,
    option,
    payload,
    summary,
    timestamp,
)

__all__ = [
    "DEFAULTS", "Dialogue", "DialogueError", "Event", "Flow", "NS_PER_MS", "PEER_ADDRESS",
    "PEER_MAC", "PEER_PORT", "STACK_ADDRESS", "STACK_MAC", "Sink", "flag_bits", "make_stack",
    "option", "payload", "summary",
]  # fmt: skip

NS_PER_MS = 1_000_000
_MOD = 1 << 32

# Virtual time does not begin at zero: this finds a stack that uses 0 for "never set".
_EPOCH_NS = 1_000_000_000_000

STACK_ADDRESS = "192.0.2.1"
PEER_ADDRESS = "192.0.2.2"
STACK_MAC = "02:00:5e:00:00:01"
PEER_MAC = "02:00:5e:00:00:02"
PEER_PORT = 40000
_FROM_PEER = bytes.fromhex((STACK_MAC + PEER_MAC).replace(":", "")) + b"\x08\0"  # to an IPv4 packet

# The fields of TCP segments that are built without scapy, which takes a hundred times as long.
_COMMON = {"sport", "dport", "seq", "ack", "flags", "window", "options"}

# The defaults of a test's stack: common Internet behaviour.
DEFAULTS: dict[str, Any] = {
    "address": STACK_ADDRESS,
    "prefix": 24,
    "mtu": 1500,
    "seed": (0x0123456789ABCDEF, 0xFEDCBA9876543210),
    "max_connections": 64,
    "packets": 512,
    "initial_window": 10,
    "rto_initial_us": 1_000_000,
    "rto_min_us": 200_000,
    "rto_max_us": 60_000_000,
    "delayed_ack_us": 40_000,
    "timestamps": 0,
    "sack": 1,
    "window_scale": -1,
    "sndbuf": 262_144,
    "rcvbuf": 65_535,
}


def make_stack(**config: Any) -> Stack:
    """A stack with DEFAULTS, changed by `config`. Ethernet gets a MAC if none is given."""
    fields = {**DEFAULTS, **config}
    if fields.get("link") == LINK_ETHERNET:
        fields.setdefault("mac", STACK_MAC)
    return Stack(**fields)


@dataclass
class Event:
    """One line of the trace."""

    ns: int  # since the dialogue began
    sent: bool  # by the stack
    frame: bytes


class Dialogue:
    """See the module's docstring. `config` are fields of struct harp_stack_config.

    peer_iss: the peer's initial sequence number, absolute. tolerance_ms: the
    allowed distance of a frame from `at` (timers have a granularity). on_arp:
    answer the stack's ARP requests for the peer automatically (Ethernet). strict:
    `send` fails while there are unexpected frames.
    """

    who = "harp"  # the TCP under test; see harp.testing.linux_dialogue

    def __init__(
        self,
        *,
        peer_iss: int = 0x10000000,
        peer_port: int = PEER_PORT,
        tolerance_ms: float = 2.0,
        on_arp: bool = True,
        strict: bool = True,
        stack: Stack | None = None,
        **config: Any,
    ) -> None:
        self.ethernet = config.get("link", LINK_IP) == LINK_ETHERNET
        self.mtu: int = config.get("mtu", DEFAULTS["mtu"])
        self.stack = stack if stack is not None else make_stack(**config)
        self.stack_address: str = config.get("address", STACK_ADDRESS)
        self.peer_address = PEER_ADDRESS
        self.peer_iss = peer_iss
        self.peer_port = peer_port
        self.peer_window = 65535
        self.stack_port: int | None = None
        self.tolerance_ns = round(tolerance_ms * NS_PER_MS)
        self.on_arp = on_arp
        self.strict = strict
        self.flows: dict[tuple[int, int], Flow] = {}
        self.trace: list[Event] = []
        self._queue: deque[Event] = deque()
        self._ns = 0
        self.stack.advance(_EPOCH_NS)

    # Time

    @property
    def now(self) -> float:
        """Milliseconds since the dialogue began."""
        return self._ns / NS_PER_MS

    def run(self, until: float) -> None:
        """Runs the stack's timers up to `until` (ms). Its frames are queued for `expect`."""
        self._run(round(until * NS_PER_MS), lambda: False)

    def after(self, ms: float) -> None:
        """Runs the stack's timers for `ms` milliseconds from now."""
        self.run(self.now + ms)

    def _run(self, until: int, stop: Callable[[], bool]) -> None:
        for _ in range(1_000_000):
            if stop():
                return
            deadline = self.stack.next_deadline()
            if deadline is None or deadline - _EPOCH_NS > until:
                break
            self._ns = max(self._ns, deadline - _EPOCH_NS)
            self._settle()
        else:
            self._fail("the stack's timers fire without end: its deadline does not advance")
        self._ns = max(self._ns, until)
        self._settle()

    def _settle(self) -> None:
        """Runs the timers that are due now."""
        for _ in range(1000):
            self.stack.advance(_EPOCH_NS + self._ns)
            self._collect()
            deadline = self.stack.next_deadline()
            if deadline is None or deadline > _EPOCH_NS + self._ns:
                return
        self._fail("next_deadline stays in the past although advance was called 1000 times")

    # Sockets

    def listen(self, port: int = 80, backlog: int = 16) -> Socket:
        """A new listener. The peer's packets go to its port from now on."""
        listener = self.stack.socket()
        listener.bind((self.stack_address, port))
        listener.listen(backlog)
        self.stack_port = port
        return listener

    def accept(self, listener: Socket) -> Socket:
        """The next connection of the listener. Fails if none is ready."""
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            self._fail("accept: no connection is ready")
        return connection

    def connect(self, port: int = 80, local_port: int | None = None) -> Socket:
        """A new socket that starts to connect to the peer's port."""
        sock = self.stack.socket()
        if local_port is not None:
            sock.bind((self.stack_address, local_port))
        self.peer_port = port
        error = sock.connect_ex((self.peer_address, port))
        if error not in (0, 115):
            self._fail(f"connect: errno {error} instead of EINPROGRESS")
        self._settle()
        return sock

    def syn_options(
        self, mss: int | None, sack: bool, wscale: int | None, timestamps: bool
    ) -> list[tuple[str, Any]]:
        """The options of the peer's SYN."""
        options: list[tuple[str, Any]] = []
        if mss is not None:
            options.append(("MSS", mss))
        if sack:
            options.append(("SAckOK", b""))
        if timestamps:
            options.append(("Timestamp", (self.peer_clock(), 0)))
        if wscale is not None:
            options.append(("WScale", wscale))
        return options

    def open_passive(
        self,
        *,
        mss: int | None = 1460,
        sack: bool = True,
        wscale: int | None = None,
        timestamps: bool = False,
        window: int | None = None,
        port: int = 80,
        rtt: float = 0,
    ) -> Socket:
        """A handshake that the peer begins; it answers after rtt ms. Returns the socket.

        The listener is closed at the end.
        """
        listener = self.listen(port)
        options = self.syn_options(mss, sack, wscale, timestamps)
        self.send(TCP(flags="S", seq=0, options=options, **_window(window)))
        self.expect(TCP(flags="SA", seq=0, ack=1))
        self.send(TCP(flags="A", seq=1, ack=1, **_window(window)), at=self.now + rtt)
        connection = self.accept(listener)
        listener.close()
        return connection

    def open_active(
        self,
        *,
        mss: int | None = 1460,
        sack: bool = True,
        wscale: int | None = None,
        timestamps: bool = False,
        window: int | None = None,
        port: int = 80,
        rtt: float = 0,
        before: Callable[[Socket], None] | None = None,
    ) -> Socket:
        """A handshake that the stack begins; the peer answers after rtt ms. Returns the socket.

        `before` may set options on the new socket.
        """
        sock = self.stack.socket()
        if before is not None:
            before(sock)
        self.peer_port = port
        error = sock.connect_ex((self.peer_address, port))
        if error not in (0, 115):
            self._fail(f"connect: errno {error} instead of EINPROGRESS")
        self._settle()
        self.expect(TCP(flags="S", seq=0))
        self.run(self.now + rtt)
        options = self.syn_options(mss, sack, wscale, timestamps)
        self.send(TCP(flags="SA", seq=0, ack=1, options=options, **_window(window)))
        self.expect(TCP(flags="A", seq=1, ack=1))
        return sock

    # Packets

    def peer_clock(self) -> int:
        """The peer's timestamp clock, 1 ms a tick."""
        return (5_000_000 + self._ns // NS_PER_MS) % _MOD

    def flow(self, peer_port: int | None = None, stack_port: int | None = None) -> Flow:
        """The peer's view of a connection; of the current one without ports."""
        peer_port = self.peer_port if peer_port is None else peer_port
        stack_port = self.stack_port if stack_port is None else stack_port
        if stack_port is None:
            raise ValueError("no port of the stack is known: listen or connect first")
        return self.flows.setdefault((peer_port, stack_port), Flow(self.peer_iss))

    def forget(self, peer_iss: int | None = None) -> None:
        """Drops the peer's state of the current connection, so that it can open a new one."""
        if peer_iss is not None:
            self.peer_iss = peer_iss
        self.flows.pop((self.peer_port, self.stack_port or 0), None)

    def send(self, packet: Packet | bytes, at: float | None = None) -> None:
        """The peer sends a packet now, or at `at` (ms) after running the timers.

        `send` adds the missing IP and Ethernet headers. Bytes are sent unchanged.
        """
        if at is not None:
            if round(at * NS_PER_MS) < self._ns:
                raise ValueError(f"send at {at} ms: it is {self.now} ms already")
            self.run(at)
        if self.strict and self._queue:
            line = self._line(self._queue[0]).strip()
            self._fail(f"unexpected frame of the stack; expect, drain or ignore it first: {line}")
        self._input(self.build(packet))

    def build(self, packet: Packet | bytes) -> bytes:
        """The frame that `send` sends for a packet."""
        if isinstance(packet, bytes):
            return packet
        if type(packet) is TCP:
            fields = self._absolute(packet)
            if packet.fields.keys() <= _COMMON and type(packet.payload) in (NoPayload, Raw):
                ip = build_ipv4(self._segment(packet, fields))
                return _FROM_PEER + ip if self.ethernet else ip
            packet = packet.copy()
            for name, value in fields.items():
                setattr(packet, name, value)
            packet = IP(src=self.peer_address, dst=self.stack_address) / packet
        if isinstance(packet, ICMP):
            packet = IP(src=self.peer_address, dst=self.stack_address) / packet
        if self.ethernet and isinstance(packet, ARP):
            destination = STACK_MAC if packet.op == 2 else "ff:ff:ff:ff:ff:ff"
            packet = Ether(src=PEER_MAC, dst=destination) / packet
        if self.ethernet and isinstance(packet, IP):
            packet = Ether(src=PEER_MAC, dst=STACK_MAC) / packet
        return bytes(packet)

    def _segment(self, tcp: Packet, fields: dict[str, Any]) -> Segment:
        options = tcp.get_field("options").i2m(tcp, fields["options"])
        return Segment(
            self.peer_address, self.stack_address, fields["sport"], fields["dport"], fields["seq"],
            fields["ack"], fields["flags"], fields["window"], options,
            _load(tcp),
        )  # fmt: skip

    def _absolute(self, tcp: Packet) -> dict[str, Any]:
        """The fields of the peer's segment with absolute numbers, and those not given."""
        given = tcp.fields
        sport = given.get("sport", self.peer_port)
        dport = given.get("dport", self.stack_port)
        flow = self.flow(sport, dport)
        flags = flag_bits(given["flags"]) if "flags" in given else 0x10
        seq = given.get("seq", flow.snd_nxt)
        ack = given.get("ack", flow.rcv_nxt if flags & 0x10 else 0)
        options = self._peer_options(flow, flags, list(given.get("options", [])))
        end = seq + len(_load(tcp)) + bool(flags & 0x02) + bool(flags & 0x01)
        if not flags & 0x04 and 0 <= seq - flow.snd_nxt <= 65535:
            flow.snd_nxt = max(flow.snd_nxt, end)
        return {
            "sport": sport,
            "dport": dport,
            "seq": (flow.iss + seq) % _MOD,
            "ack": ((flow.irs or 0) + ack) % _MOD if ack or flags & 0x10 else 0,
            "flags": flags,
            "window": given.get("window", self.peer_window),
            "options": options,
        }

    def _peer_options(self, flow: Flow, flags: int, options: list[Any]) -> list[Any]:
        names = {name for name, _ in options}
        if flags & 0x02 and not flags & 0x04:
            flow.ts_offered = "Timestamp" in names
            flow.ts_on = flow.ts_offered and flow.ts_recent is not None
        elif flow.ts_on and "Timestamp" not in names and not flags & 0x04:
            stamp = (self.peer_clock(), flow.ts_recent or 0)
            options = [("NOP", None), ("NOP", None), ("Timestamp", stamp)] + options
        if flags & 0x12 == 0x12:
            options = [
                (name, (value[0], flow.ts_recent or 0))
                if name == "Timestamp" and value[1] == 0
                else (name, value)
                for name, value in options
            ]
        base = flow.irs or 0
        return [
            (name, tuple((edge + base) % _MOD for edge in value)) if name == "SAck" else
            (name, value)
            for name, value in options
        ]  # fmt: skip

    def _input(self, frame: bytes) -> None:
        self.trace.append(Event(self._ns, False, frame))
        self.stack.advance(_EPOCH_NS + self._ns)
        self.stack.input(frame)
        self._settle()

    def _taken(self) -> list[tuple[int, bytes]]:
        """The frames that the stack has sent, with their time since the dialogue began, ns."""
        return [(self._ns, frame) for frame in self.stack.take()]

    def _collect(self) -> None:
        for ns, frame in self._taken():
            event = Event(ns, True, frame)
            self.trace.append(event)
            try:
                segment = check_frame(frame, self.ethernet, self.mtu)
            except BadFrame as wrong:
                self._fail(f"the stack sent a bad frame: {wrong}: {frame.hex()}")
            if segment is not None:
                self._learn(segment, frame)
            if not (self.ethernet and self.on_arp and self._answer_arp(frame)):
                self._queue.append(event)

    def _learn(self, segment: Segment, frame: bytes) -> None:
        key = (segment.dport, segment.sport)
        syn, rst = segment.flags & 0x02, segment.flags & 0x04
        if rst and key not in self.flows:
            return
        flow = self.flows.setdefault(key, Flow(self.peer_iss))
        if self.stack_port is None and segment.dport == self.peer_port:
            self.stack_port = segment.sport
        if syn and flow.irs != segment.seq:
            if segment.dport == self.peer_port:
                self.stack_port = segment.sport
            flow.irs, flow.rcv_nxt = segment.seq, 1
        seq = flow.relative_seq(segment.seq)
        if not rst and seq <= flow.rcv_nxt < seq + segment.length:
            flow.rcv_nxt = seq + segment.length
        stamp = timestamp(segment.options)
        if stamp is not None:
            flow.ts_recent = stamp[0]
            if syn:
                flow.ts_on = flow.ts_offered or not segment.flags & 0x10

    def _answer_arp(self, frame: bytes) -> bool:
        packet = Ether(frame)
        if ARP not in packet or packet[ARP].op != 1 or packet[ARP].pdst != self.peer_address:
            return False
        request = packet[ARP]
        reply = ARP(
            op=2, hwsrc=PEER_MAC, psrc=self.peer_address, hwdst=request.hwsrc, pdst=request.psrc
        )
        raw = bytes(Ether(src=PEER_MAC, dst=request.hwsrc) / reply)
        self.trace.append(Event(self._ns, False, raw))
        self.stack.input(raw)
        return True

    # Expectations

    def expect(
        self,
        packet: Packet,
        at: float | None = None,
        within: float | None = None,
        length: int | None = None,
    ) -> Packet:
        """The next frame of the stack must match `packet`. Returns it, with relative numbers.

        at: it must be sent at this time (ms, within the tolerance). within: it must be sent at
        most this number of ms from now. Neither: it must have been sent by now. length: the
        number of payload bytes, whatever they are. The returned packet's `time` is its time of
        sending, ms.
        """
        self._settle()
        limit = self._ns
        if at is not None:
            limit = round(at * NS_PER_MS) + self.tolerance_ns
        elif within is not None:
            limit = self._ns + round(within * NS_PER_MS)
        if limit > self._ns:
            self._run(limit, lambda: bool(self._queue))
        want = describe(packet, length)
        if not self._queue:
            self._fail(f"expected {want}, but the stack sent nothing by {limit / NS_PER_MS} ms")
        event = self._queue.popleft()
        got = self._relative(event.frame)
        got.time = event.ns / NS_PER_MS
        problem = mismatch(packet, got, length)
        if problem:
            self._fail(f"expected {want}\n     got {self._line(event)}\n     ({problem})")
        if at is not None and abs(event.ns - round(at * NS_PER_MS)) > self.tolerance_ns:
            self._fail(f"expected {want} at {at} ms, got it at {event.ns / NS_PER_MS} ms")
        return got

    def silence(self, until: float | None = None, during: float | None = None) -> None:
        """The stack must send nothing until `until` (ms), for `during` ms, or by now."""
        if during is not None:
            until = self.now + during
        limit = self._ns if until is None else round(until * NS_PER_MS)
        self._run(limit, lambda: bool(self._queue))
        if self._queue and self._queue[0].ns <= limit:
            self._fail(f"expected silence, but the stack sent {self._line(self._queue[0])}")

    def settle(self) -> None:
        """Lets the stack send all that it can send now, after a call on a socket."""
        self._settle()

    def drain(self, until: float | None = None) -> list[Packet]:
        """Returns all queued frames, after running up to `until` (ms)."""
        self._catch_up(until)
        packets = []
        while self._queue:
            event = self._queue.popleft()
            packet = self._relative(event.frame)
            packet.time = event.ns / NS_PER_MS
            packets.append(packet)
        return packets

    def ignore(self, until: float | None = None) -> None:
        """Discards all queued frames, after running up to `until` (ms)."""
        self._catch_up(until)
        self._queue.clear()

    def _catch_up(self, until: float | None) -> None:
        if until is not None:
            self.run(until)
        else:
            self._settle()

    def _relative(self, frame: bytes) -> Packet:
        packet = Ether(frame) if self.ethernet else IP(frame)
        if TCP not in packet:
            return packet
        tcp = packet[TCP]
        flow = self.flows.get((tcp.dport, tcp.sport))
        if flow is None:
            return packet
        # scapy reduces sequence numbers to 32 bits only when it builds a packet.
        tcp.seq = flow.relative_seq(tcp.seq) if flow.irs is not None else tcp.seq
        if flag_bits(tcp.flags) & 0x10:
            tcp.ack = flow.relative_ack(tcp.ack)
        tcp.options = [
            (name, tuple(flow.relative_ack(edge) for edge in value)) if name == "SAck" else
            (name, value)
            for name, value in tcp.options
        ]  # fmt: skip
        return packet

    # What went wrong

    def _line(self, event: Event) -> str:
        arrow = "<" if event.sent else ">"
        try:
            packet = self._relative(event.frame)
            if not event.sent and TCP in packet:
                packet = Ether(event.frame) if self.ethernet else IP(event.frame)
                self._peer_relative(packet[TCP])
            return f"{event.ns / NS_PER_MS:12.3f} {arrow} {summary(packet)}"
        except Exception:  # a malformed frame can only be shown as bytes
            return f"{event.ns / NS_PER_MS:12.3f} {arrow} {event.frame[:64].hex()}"

    def _peer_relative(self, tcp: Packet) -> None:
        flow = self.flows.get((tcp.sport, tcp.dport))
        if flow is None:
            return
        tcp.seq = flow.relative_ack(tcp.seq)
        if flow.irs is not None and flag_bits(tcp.flags) & 0x10:
            tcp.ack = flow.relative_seq(tcp.ack)
        tcp.options = [
            (name, tuple(flow.relative_seq(edge) for edge in value)) if name == "SAck" else
            (name, value)
            for name, value in tcp.options
        ]  # fmt: skip

    def render(self, last: int = 60) -> str:
        """The end of the trace as text; `<` marks the stack's frames."""
        lines = [self._line(event) for event in self.trace[-last:]]
        if len(self.trace) > last:
            lines.insert(0, f"({len(self.trace) - last} earlier frames)")
        return "\n".join(lines)

    def save(self, path: Path) -> None:
        """Writes the whole dialogue as pcapng, with the stack's frames as outbound."""
        frames = ((_EPOCH_NS + event.ns, event.sent, event.frame) for event in self.trace)
        write_pcapng(path, frames, self.ethernet)

    def fail(self, message: str) -> NoReturn:
        """Ends the dialogue with a message and its trace."""
        self._fail(message)

    def _fail(self, message: str) -> NoReturn:
        raise DialogueError(f"{message}\nat {self.now} ms; the trace:\n{self.render()}")


def _load(tcp: Packet) -> bytes:
    """The payload of a script's segment."""
    return tcp.payload.load if type(tcp.payload) is Raw else bytes(tcp.payload)


def _window(window: int | None) -> dict[str, Any]:
    return {} if window is None else {"window": window}
