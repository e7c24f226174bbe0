# SPDX-License-Identifier: Apache-2.0
"""Whether another host has an address: ARP probes on an interface (RFC 5227, 2.1.1)."""

from __future__ import annotations

import socket
import struct
import time
from contextlib import suppress
from typing import Optional

PROBES = 3
WAIT_S = 0.1  # for a reply to each probe; harp/engine/own_address.c gives the reason

_ETH_P_ARP = 0x0806
_SOL_PACKET, _ADD_MEMBERSHIP, _UNICAST = 263, 1, 1
_BROADCAST = b"\xff" * 6
_FIXED = struct.pack("!HHBB", 1, 0x0800, 6, 4)  # Ethernet, IPv4
_PACKET = struct.Struct("!6sH6s4s6s4s")  # ARP (RFC 826)
_REQUEST, _REPLY = 1, 2


def _raw(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def _claimant(frame: bytes, address: bytes, mac: bytes) -> Optional[bytes]:
    """The sender's hardware address of an ARP packet whose sender IP is `address`; None for other
    packets and for our own `mac`."""
    arp = frame[14 : 14 + _PACKET.size]
    if len(arp) < _PACKET.size:
        return None
    fixed, operation, sender, sender_ip, _, _ = _PACKET.unpack(arp)
    if fixed != _FIXED or operation not in (_REQUEST, _REPLY) or sender_ip != address:
        return None
    return None if sender == mac else bytes(sender)


def _listen(wire: socket.socket, address: bytes, mac: bytes, seconds: float) -> Optional[bytes]:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        wire.settimeout(left)
        with suppress(socket.timeout):
            found = _claimant(wire.recv(2048), address, mac)
            if found:
                return found
    return None


def holder(interface: str, address: str, mac: str) -> Optional[str]:
    """The hardware address of another host that uses the address; None if no host replies.

    `mac` is the hardware address that HARP uses with the address; packets from it do not count.
    Packets of this host do not count either, so a local rank with the address is no conflict.
    Waits 0.3 s without a reply. Raises OSError: EPERM without CAP_NET_RAW, ENETDOWN.
    """
    own, wanted = _raw(mac), socket.inet_aton(address)
    probe = _BROADCAST + own + struct.pack("!H", _ETH_P_ARP)
    probe += _PACKET.pack(_FIXED, _REQUEST, own, bytes(4), bytes(6), wanted)
    # A socket bound to one protocol does not receive outgoing packets, unlike ETH_P_ALL.
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as wire:
        wire.bind((interface, _ETH_P_ARP))
        if wire.getsockname()[4] != own:  # the NIC's filter must accept a second unicast address
            request = struct.pack("@iHH8s", socket.if_nametoindex(interface), _UNICAST, 6, own)
            wire.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, request)
        for _ in range(PROBES):
            wire.send(probe)
            found = _listen(wire, wanted, own, WAIT_S)
            if found:
                return found.hex(":")
    return None
