# SPDX-License-Identifier: Apache-2.0
"""The plugin's life cycle under valgrind: load, init, verified transfers, close, finalize, unload,
twice. valgrind finds no use of uninitialised or freed memory, and no leak.

The other rank runs without valgrind; both send and receive. The test also runs over
packet sockets and DPDK, and with several instances, if HARP_TEST_FULL=1 is set."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks import Rank, Site, connect, packet_site, remove_wire, wire_path, wire_site

from tools.hosts.ranks import ethdev_site

FULL = bool(os.environ.get("HARP_TEST_FULL"))
JOINTS = ["wire", "packet", "own address", "instances", "ethdev"] if FULL else ["wire"]
ROUNDS = 2  # from load to unload
FOUND = 99  # valgrind's exit status after a finding
SLOW_S = 120.0  # valgrind makes a process about thirty times slower
MEMCHECK = (
    "valgrind", "--tool=memcheck", f"--error-exitcode={FOUND}", "--fair-sched=yes",
    "--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite",
    "--num-callers=30", "--quiet",
)  # fmt: skip

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not shutil.which("valgrind"), reason="there is no valgrind"),
]


@pytest.fixture(params=JOINTS)
def sites(request: Any, tmp_path: Path) -> Iterator[list[Site]]:
    """The sites of two ranks; the parameter: the network between them."""
    keys: dict[str, object] = {"timeout_ms": 60000}
    if request.param in ("packet", "own address"):
        own = request.param == "own address"
        hosts = request.getfixturevalue("lab").hosts
        yield [packet_site(tmp_path / str(host.index), host, own, **keys) for host in hosts]
        return
    if request.param == "ethdev":
        socket = tmp_path / "vhost"
        yield [ethdev_site(tmp_path / str(end), socket, end, **keys) for end in (1, 2)]
        return
    if request.param == "instances":
        keys |= {"instances": 2, "flows": 4}
    path = wire_path()
    yield [wire_site(tmp_path / str(end), path, end, **keys) for end in (1, 2)]
    remove_wire(path)


def watched(site: Site) -> Site:
    return Site(site.folder, [*site.prefix, *MEMCHECK], site.environment, site.address)


def a_job(one: Rank, other: Rank) -> None:
    """Links in both directions, with messages of every size. finalize closes one of them."""
    for ends in ((one, other), (other, one)):
        listener = ends[1].listen()
        link = connect(*ends, listener)
        ends[1].do("unlisten", listener[0])
        for count, size in ((3, 0), (20, 8), (4, 4000), (3, 3 << 20)):
            link.start(count, size, int(SLOW_S * 1e3))
            link.finish(SLOW_S)
        if ends[0] is one:
            link.sender.do("close", link.sends)
            link.receiver.do("close", link.receives)


@pytest.mark.slow
def test_plugin_lifetime_is_clean_under_memcheck(sites: list[Site]) -> None:
    with Rank(watched(sites[0])) as one, Rank(sites[1]) as other:
        for number in range(ROUNDS):
            for rank in (one, other):
                if number:
                    rank.do("load")
                rank.start("init")
            for rank in (one, other):
                assert rank.finish(SLOW_S) == ["1"]
            a_job(one, other)
            for rank in (one, other):
                rank.do("finalize")
                rank.do("unload")
        for rank in (one, other):
            rank.start("exit")
            status = rank.wait(SLOW_S)
            assert status == 0, "\n".join([f"exit status {status}", *rank.lines()])
        assert one.lines("==") == []
