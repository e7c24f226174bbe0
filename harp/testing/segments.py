# SPDX-License-Identifier: Apache-2.0
"""Formats segments as text, and compares them with the expected ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scapy.fields import FlagValue
from scapy.layers.inet import IP, TCP
from scapy.packet import NoPayload, Packet, Padding, Raw


def flag_bits(flags: Any) -> int:
    """TCP flags as a number, from scapy's value or letters."""
    return int(flags if isinstance(flags, FlagValue) else TCP(flags=flags).flags)


def payload(packet: Packet) -> bytes:
    """The TCP payload by the IP header's length, without link padding."""
    ip, tcp = packet[IP], packet[TCP]
    data = bytes(tcp.payload)
    size: int = ip.len - ip.ihl * 4 - tcp.dataofs * 4
    return data[:size]


def option(packet: Packet, name: str) -> Any:
    """The value of a TCP option by scapy's name ("MSS", "SAck", ...); None if it is absent."""
    for key, value in packet[TCP].options:
        if key == name:
            return value
    return None


def timestamp(options: bytes) -> tuple[int, int] | None:
    """TSval and TSecr of a header's option bytes; None without a timestamps option."""
    at = 0
    while at < len(options) and options[at] != 0:
        if options[at] == 1:
            at += 1
        elif options[at] == 8:
            raw = options[at + 2 : at + 10]
            return int.from_bytes(raw[:4], "big"), int.from_bytes(raw[4:], "big")
        else:
            at += max(options[at + 1], 2)
    return None


def mismatch(want: Packet, got: Packet, length: int | None) -> str | None:
    """The first difference, or None."""
    layer: Packet = want
    while not isinstance(layer, (NoPayload, Raw)):
        kind = type(layer)
        if kind not in got:
            return f"no {kind.__name__} in it"
        problem = _compare_fields(layer, got[kind])
        if problem:
            return problem
        got_payload = got[kind].payload
        layer = layer.payload
    if isinstance(got_payload, Padding):
        got_payload = NoPayload()
    have = b"" if isinstance(got_payload, Padding) else bytes(got_payload)
    if TCP in got and TCP in want:
        have = payload(got)
    expected = bytes(layer)
    if length is not None:
        return None if len(have) == length else f"{len(have)} bytes of payload, not {length}"
    if TCP not in want and isinstance(layer, NoPayload):
        return None
    if have != expected:
        return f"payload is {_excerpt(have)}, not {_excerpt(expected)}"
    return None


def _compare_fields(want: Packet, got: Packet) -> str | None:
    for name, value in want.fields.items():
        have = got.getfieldval(name)
        if name == "options" and isinstance(want, TCP):
            problem = _compare_options(value, have)
            if problem:
                return problem
        elif name == "flags" and isinstance(want, TCP):
            wanted, had = flag_bits(value), flag_bits(have)
            mask = 0xFF if wanted & 0x08 else 0xF7
            if wanted & mask != had & mask:
                return f"flags are {have}, not {value}"
        elif have != value:
            return f"{name} is {have!r}, not {value!r}"
    return None


def _compare_options(want: Iterable[Any], got: Iterable[Any]) -> str | None:
    have = {name: value for name, value in got if name not in ("NOP", "EOL")}
    for name, value in want:
        if name not in have:
            return f"option {name} is missing"
        if value is not ... and have[name] != value:
            return f"option {name} is {have[name]!r}, not {value!r}"
    return None


def describe(packet: Packet, length: int | None) -> str:
    """The explicitly set fields of a packet as text, layer by layer."""
    text = []
    layer: Packet = packet
    while not isinstance(layer, NoPayload):
        if isinstance(layer, Raw):
            text.append(_excerpt(bytes(layer)))
        else:
            fields = ", ".join(f"{k}={_show(k, v)}" for k, v in layer.fields.items())
            text.append(f"{type(layer).__name__}({fields})")
        layer = layer.payload
    if length is not None:
        text.append(f"{length} bytes")
    return " / ".join(text)


def _show(name: str, value: Any) -> str:
    return f'"{value}"' if name == "flags" else repr(value)


def _excerpt(data: bytes) -> str:
    return f"{data[:16]!r}{'...' if len(data) > 16 else ''} ({len(data)} bytes)"


def summary(packet: Packet) -> str:
    """One line in tcpdump's style."""
    if TCP not in packet:
        return str(packet.summary())
    ip, tcp = packet[IP], packet[TCP]
    size = len(payload(packet))
    parts = [f"{ip.src}.{tcp.sport} > {ip.dst}.{tcp.dport}: [{tcp.flags}] seq {tcp.seq}"]
    if size:
        parts[0] += f":{tcp.seq + size}"
    if flag_bits(tcp.flags) & 0x10:
        parts.append(f"ack {tcp.ack}")
    parts.append(f"win {tcp.window}")
    options = [(k, v) for k, v in tcp.options if k not in ("NOP", "EOL")]
    if options:
        shown = [k if v in (b"", None) else f"{k} {v}" for k, v in options]
        parts.append("options " + " ".join(shown))
    parts.append(f"length {size}")
    return ", ".join(parts)
