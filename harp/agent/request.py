# SPDX-License-Identifier: Apache-2.0
"""Requests to the agent.

A request is a JSON object of at most LIMIT bytes. Its members:

    version  1; a newer one may have more members, which an older agent ignores
    op       "open", "listen", "status" or "hello"

    open     device "packet:IFACE" or "xdp:IFACE[,mode=MODE][,send=WAY]"; queues 1 to 8; address
             "kernel" or A.B.C.D; mac "" or aa:bb:cc:dd:ee:ff; mtu 0 or up to 65535; ports
             [first, last] or [0, 0]; vnet true: virtio-net headers (xdp)
    listen   device; grant [first, last], the ports that an open gave; first; count

The C side is dpdk_glue/agent/agent_client.c.
"""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass
from typing import Any, Union

VERSION = 1
LIMIT = 1024  # bytes
QUEUES = 8
LISTENERS = 64
_MAC = re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}")
_THIS_NETWORK = ipaddress.IPv4Network("0.0.0.0/8")  # RFC 1122, section 3.2.1.3
_MULTICAST = ipaddress.IPv4Address("224.0.0.0")  # from here on: multicast and reserved
_SCHEMES = ("packet", "xdp")
_OPTIONS = re.compile(r"(?:,(?:mode|send)=[a-z]{1,16}){0,2}")
# Printable, because it stands in log lines and in a command line.
_INTERFACE = re.compile(r"(?:(?![/:,\"'\\])[!-~]){1,15}")


class RequestError(ValueError):
    """A request that the agent cannot read. The text says which member is wrong."""


@dataclass(frozen=True)
class Device:
    """What stands behind `device =`: "xdp", "eth0", ",mode=copy"."""

    scheme: str
    interface: str
    options: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}:{self.interface}"


@dataclass(frozen=True)
class Open:
    """Asks for the sockets of a device. `ports` is (0, 0) for any local ports. `address` is
    "kernel", or one of HARP's own. `vnet`: the job expects a virtio-net header in front of each
    frame of an xdp device's packet socket."""

    device: Device
    queues: int
    address: str
    mac: str
    mtu: int
    ports: tuple[int, int]
    vnet: bool = False


@dataclass(frozen=True)
class Listen:
    """Asks for listeners on `count` ports from `first` on, in the range of an earlier grant."""

    device: Device
    grant: tuple[int, int]
    first: int
    count: int


@dataclass(frozen=True)
class Query:
    """Asks for a JSON text: "status", what the agent has granted; "hello", whether the client may
    ask."""

    what: str


Request = Union[Open, Listen, Query]


def _number(members: dict[str, Any], name: str, least: int, most: int) -> int:
    value = members.get(name)
    if type(value) is not int or not least <= value <= most:
        raise RequestError(f"{name} must be a whole number from {least} to {most}")
    return value


def _text(members: dict[str, Any], name: str) -> str:
    value = members.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{name} must be a text")
    return value


def _range(members: dict[str, Any], name: str) -> tuple[int, int]:
    value = members.get(name)
    if not isinstance(value, list) or len(value) != 2:
        raise RequestError(f"{name} must be two port numbers")
    first, last = (_number({name: port}, name, 0, 65535) for port in value)
    if first > last or (first == 0) != (last == 0):
        raise RequestError(f"{name} must be two port numbers in ascending order")
    return first, last


def _device(members: dict[str, Any]) -> Device:
    scheme, colon, rest = _text(members, "device").partition(":")
    if colon and scheme == "dpdk":
        raise RequestError(
            "the agent opens no dpdk devices: a job needs the NIC's own file for them (/dev/vfio); "
            "set device = packet:IFACE or xdp:IFACE, or unset HARP_AGENT"
        )
    if not colon or scheme not in _SCHEMES:
        raise RequestError("device must be packet:IFACE or xdp:IFACE; the agent opens no others")
    name, comma, option = rest.partition(",")
    if not _INTERFACE.fullmatch(name) or name in (".", ".."):
        raise RequestError("device must name an interface of at most 15 characters")
    options = comma + option
    if not _OPTIONS.fullmatch(options) or (options and scheme != "xdp"):
        raise RequestError("device may have options of the form xdp:IFACE,mode=MODE,send=WAY only")
    return Device(scheme, name, options)


def _address(members: dict[str, Any]) -> str:
    value = _text(members, "address")
    if value == "kernel":
        return value
    try:
        address = ipaddress.IPv4Address(value)
    except ValueError:
        raise RequestError('address must be "kernel" or an IPv4 address') from None
    # harp-agent-open would take 0.0.0.0 for the kernel's address, with all its ports.
    if address in _THIS_NETWORK or address.is_loopback or address >= _MULTICAST:
        raise RequestError("address must be one that a host may have")
    return str(address)


def _open(members: dict[str, Any]) -> Open:
    mac = _text(members, "mac")
    if mac and not _MAC.fullmatch(mac):
        raise RequestError("mac must be six bytes in lower-case hexadecimal with colons")
    return Open(
        device=_device(members),
        queues=_number(members, "queues", 1, QUEUES),
        address=_address(members),
        mac=mac,
        mtu=_number(members, "mtu", 0, 65535),
        ports=_range(members, "ports"),
        vnet=members.get("vnet") is True,
    )


def _listen(members: dict[str, Any]) -> Listen:
    grant = _range(members, "grant")
    return Listen(
        device=_device(members),
        grant=grant,
        first=_number(members, "first", max(grant[0], 1), grant[1]),
        count=_number(members, "count", 1, LISTENERS),
    )


def parse(data: bytes) -> Request:
    """The request in a packet. Raises RequestError for any other bytes."""
    if len(data) > LIMIT:
        raise RequestError(f"the request is longer than {LIMIT} bytes")
    try:
        members = json.loads(data)
    except (ValueError, RecursionError):
        raise RequestError("the request is no JSON text") from None
    if not isinstance(members, dict):
        raise RequestError("the request is no JSON object")
    _number(members, "version", 1, 1 << 31)
    op = _text(members, "op")
    if op == "open":
        return _open(members)
    if op == "listen":
        return _listen(members)
    if op in ("status", "hello"):
        return Query(op)
    raise RequestError('op must be "open", "listen", "status" or "hello"; is the client newer?')
