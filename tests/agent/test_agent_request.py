# SPDX-License-Identifier: Apache-2.0
"""Any bytes as a request: the reader returns a request within its bounds, or says what is wrong."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_client import Opened, listening, opening

from harp.agent.request import LIMIT, Device, Listen, Open, Query, Request, RequestError, parse

EXAMPLES = 100_000 if os.environ.get("HARP_TEST_FULL") else 500
LISTEN = listening(Opened([], 61000, 61511, 0))
GOOD: list[dict[str, Any]] = [
    opening(),
    opening(device="xdp:eth0,mode=copy", queues=8, address="10.0.0.7", mac="02:00:00:00:00:01"),
    opening(mtu=9000, ports=[61000, 61100]),
    LISTEN,
    {"version": 1, "op": "status"},
    {"version": 2, "op": "hello", "later": [1, {"a": None}]},
]
EXPECTED: list[Request] = [  # of GOOD
    Open(Device("packet", "eth0"), 1, "kernel", "", 0, (0, 0)),
    Open(Device("xdp", "eth0", ",mode=copy"), 8, "10.0.0.7", "02:00:00:00:00:01", 0, (0, 0)),
    Open(Device("packet", "eth0"), 1, "kernel", "", 9000, (61000, 61100)),
    Listen(Device("packet", "eth0"), (61000, 61511), 61000, 16),
    Query("status"),
    Query("hello"),
]

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-2, 70000), st.floats(),
    st.text(max_size=40),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def nearly_good(draw: st.DrawFn) -> bytes:
    """A good request with some members changed, added or left out."""
    members = dict(draw(st.sampled_from(GOOD)))
    for name in draw(st.lists(st.sampled_from(sorted(members)), max_size=2)):
        members.pop(name, None)
        if draw(st.booleans()):
            members[name] = draw(values)
    return json.dumps(members).encode()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good request with damaged bytes."""
    data = bytearray(json.dumps(draw(st.sampled_from(GOOD))).encode())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        piece = draw(st.binary(max_size=3))
        data[at : at + draw(st.integers(0, 3))] = piece
        if not data:
            break
    return bytes(data)


def check(data: bytes) -> None:
    """What the rest of the agent relies on."""
    try:
        request = parse(data)
    except RequestError as wrong:
        assert str(wrong).isprintable()
        return
    if isinstance(request, Query):
        assert request.what in ("status", "hello")
        return
    name = request.device.interface
    assert 1 <= len(name) <= 15 and name.isascii() and name.isprintable()
    assert not set(name) & set(" /:,\"'\\")
    assert request.device.scheme in ("packet", "xdp")
    if isinstance(request, Open):
        assert 1 <= request.queues <= 8 and 0 <= request.mtu <= 65535
        assert 0 <= request.ports[0] <= request.ports[1] <= 65535
        assert request.address == "kernel" or request.address.count(".") == 3
    else:
        assert isinstance(request, Listen)
        assert 1 <= request.grant[0] <= request.first <= request.grant[1] <= 65535
        assert 1 <= request.count <= 64


@pytest.mark.slow
@pytest.mark.sanitized
@pytest.mark.timeout(120 + EXAMPLES // 100)
@settings(max_examples=EXAMPLES, deadline=None)
@given(st.one_of(st.binary(max_size=LIMIT + 2), nearly_good(), damaged()))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    check(data)


@pytest.mark.parametrize("number", range(len(GOOD)))
def test_good_requests_are_read(number: int) -> None:
    assert parse(json.dumps(GOOD[number]).encode()) == EXPECTED[number]


def test_members_of_newer_versions_are_ignored() -> None:
    newer = {**opening(), "version": 7, "colour": "red", "nested": [[[{}]]]}
    assert parse(json.dumps(newer).encode()) == parse(json.dumps(opening()).encode())


@pytest.mark.parametrize(
    "interface",
    ["", ".", "..", "a" * 16, "a b", "a/b", "a:b", 'a"b', "a\\b", "a\nb", "\x1b[2J", "a\0b",
     "\ud800", "\u202e", "\u00e9"],
)  # fmt: skip
def test_interface_that_no_host_has_is_refused(interface: str) -> None:
    """Such a name would reach a command line, or a terminal through the log."""
    with pytest.raises(RequestError, match="interface"):
        parse(json.dumps(opening(interface)).encode())


@pytest.mark.parametrize("address", ["0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "1.2.3",
                                     "255.255.255.255", "::1", "01.2.3.4", ""])  # fmt: skip
def test_address_that_no_host_has_is_refused(address: str) -> None:
    """harp-agent-open would take 0.0.0.0 for the kernel's address, with all its ports."""
    with pytest.raises(RequestError, match="address"):
        parse(json.dumps(opening(address=address)).encode())


@pytest.mark.parametrize(
    "changes",
    [{"queues": 0}, {"queues": 9}, {"queues": True}, {"queues": 1.0}, {"queues": "1"}, {"mtu": -1},
     {"mtu": 65536}, {"ports": [0, 5]}, {"ports": [5, 4]}, {"ports": [1]}, {"ports": 7},
     {"ports": [1, 65536]}, {"mac": "02:00:00:00:00"}, {"mac": "02:00:00:00:00:0G"}, {"mac": None},
     {"device": "dpdk:eth0"}, {"device": "packet:eth0,mode=copy"}, {"device": "xdp:eth0,mode=A"},
     {"device": "xdp:eth0,other=1"}, {"op": "close"}, {"version": 0}, {"version": None}],
)  # fmt: skip
def test_member_out_of_bounds_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        parse(json.dumps(opening(**changes)).encode())


@pytest.mark.parametrize("changes", [{"grant": [0, 0]}, {"first": 60999}, {"first": 61512},
                                     {"count": 0}, {"count": 65}])  # fmt: skip
def test_listeners_outside_of_grant_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        parse(json.dumps({**LISTEN, **changes}).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"1", b"{", b"[" * LIMIT, b'{"a":' * 170, b"\xff\xfe",
                                  b" " * (LIMIT + 1), b"1" * LIMIT, b"nan"])  # fmt: skip
def test_other_texts_are_refused(data: bytes) -> None:
    with pytest.raises(RequestError):
        parse(data)


def test_long_request_is_refused() -> None:
    good = json.dumps(opening()).encode()
    parse(good.ljust(LIMIT))
    with pytest.raises(RequestError, match="longer"):
        parse(good.ljust(LIMIT + 1))
