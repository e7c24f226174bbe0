# SPDX-License-Identifier: Apache-2.0
"""Processes that drive several NICs: each device that NCCL sees serves listen and connect."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from ends import all_through, ends_between, move, refuse_devices, stream
from pairs import Pair, Side, Transport

from harp import paths
from tools.hosts.lab import Lab
from tools.hosts.lab_fixtures import lab
from tools.hosts.ranks import remove_wire

__all__ = ["lab"]

# One of each shape: the oldest, whose accept blocks and whose handles are short; one without
# contexts; the newest.
APIS = (4, 8, 12)

Make = Callable[..., Pair]


def address(nic: int, side: int) -> str:
    """The address of a side's NIC; each NIC has a network of its own."""
    return f"10.9.{nic}.{side + 1}"


def site(folder: Path, texts: list[str], **environment: str) -> dict[str, str]:
    """Writes the configuration files. Returns the environment of a process that uses them."""
    (folder / "run").mkdir(parents=True)
    for number, text in enumerate(texts):
        (folder / f"ztcp{number}.conf").write_text(text)
    alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    place = {"HARP_CONF_DIR": str(folder), "HARP_RUN_DIR": str(folder / "run")}
    return {**alone, **place, **environment}


def started(stack: ExitStack, transport: Transport, api: int) -> Pair:
    pair = Pair(transport, api)
    stack.callback(pair.end)
    return pair


@pytest.fixture
def wires(tmp_path: Path) -> Iterator[Make]:
    """Makes two ranks that are joined by so many wires, without root. A wire has an address of
    HARP's own, so it serves one process of a host. `more`: rank a's environment."""
    memory = Path(f"/dev/shm/harp-nics-{uuid.uuid4().hex[:12]}")
    with ExitStack() as stack:

        def make(nics: int, api: int = 12, devices: int = 0, **more: str) -> Pair:
            sides = []
            for side in range(2):
                texts = [
                    f"device = wire:{memory}-{nic}\naddress = {address(nic, side)}/24\n"
                    for nic in range(nics)
                ]
                folder = tmp_path / str(side)
                environment = site(folder, texts, **({} if side else more))
                sides.append(Side(environment=environment))
            plugin = paths.nccl_plugin_path()
            transport = Transport("wire", plugin, (sides[0], sides[1]), devices or nics)
            return started(stack, transport, api)

        yield make
    remove_wire(memory)


@pytest.fixture
def rails(lab: Lab, tmp_path: Path) -> Iterator[Make]:
    """Makes two ranks on hosts that are joined by so many cables. The NICs share the addresses of
    the kernel. `down`: rank a's interfaces that are down."""
    with ExitStack() as stack:

        def make(nics: int, api: int = 12, down: tuple[int, ...] = ()) -> Pair:
            one, other = lab.hosts
            for nic in range(nics):
                name = f"nic{nic}"
                pair = ["type", "veth", "peer", "name", name, "netns", other.namespace]
                one.run(["ip", "link", "add", name, *pair])
                stack.callback(one.run, ["ip", "link", "del", name])
                for host in lab.hosts:
                    own = f"{address(nic, host.index)}/24"
                    host.run(["ip", "addr", "add", own, "dev", name])
                    if host is other or nic not in down:
                        host.run(["ip", "link", "set", name, "up"])
            texts = [f"device = packet:nic{nic}\n" for nic in range(nics)]
            sides = [
                Side(list(host.command([])), site(tmp_path / str(host.index), texts))
                for host in lab.hosts
            ]
            plugin = paths.nccl_plugin_path()
            return started(stack, Transport("packet", plugin, (sides[0], sides[1]), nics), api)

        yield make


@pytest.fixture(params=["wires", "rails"])
def joined(request: pytest.FixtureRequest) -> Any:
    if request.param == "rails" and (os.geteuid() != 0 or "QEMU_LD_PREFIX" in os.environ):
        pytest.skip("namespaces need root, and not qemu-user")
    return request.getfixturevalue(request.param)


def listens_at(handle: str, where: str) -> bool:
    return socket.inet_aton(where) in bytes.fromhex(handle)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("nics", [1, 2, 8])
def test_each_device_listens_and_connects(joined: Make, nics: int, api: int) -> None:
    """Both directions, one device after the other; the peer learns the device's own address."""
    pair = joined(nics, api)
    for device in range(nics):
        for side, rank in enumerate(pair.ranks):
            listening = rank.listen(device=device)
            assert listens_at(listening["handle"], address(device, side))
            rank.close_listener(listener=listening["listener"])
        for one, other in ((pair.a, pair.b), (pair.b, pair.a)):
            sender, receiver = ends_between(one, other, 100_000, device, devices=(device, device))
            move(sender, receiver, 100_000, device)


def test_listener_chooses_the_nic(joined: Make) -> None:
    """NCCL may name another device to connect. Only NIC i reaches the peer's NIC i here."""
    pair = joined(3)
    for to in range(3):
        for by in range(3):
            sender, receiver = ends_between(pair.a, pair.b, 50_000, by, devices=(by, to))
            move(sender, receiver, 50_000, by)


def test_links_of_all_devices_carry_messages_at_once(joined: Make) -> None:
    pair = joined(4)
    streams = []
    for device in range(4):
        for one, other in ((pair.a, pair.b), (pair.b, pair.a)):
            both = ends_between(one, other, 8, devices=(device, device))
            seed = 100 * len(streams)
            streams += stream(*both, count=100, size=30_000, seed=seed)
    all_through(streams, 100)


@pytest.mark.parametrize("api", APIS)
def test_device_numbers_beyond_the_last_are_refused(wires: Make, api: int) -> None:
    pair = wires(2, api)
    refuse_devices(pair.a, pair.b.listen(device=1)["handle"], (-1, 2, 128, 1 << 30))


def test_one_device_uses_the_home_nic(wires: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARP_DEVICES", "1")
    pair = wires(3, devices=1)
    assert pair.a.properties()["name"] == "HARP"
    assert listens_at(pair.a.listen()["handle"], address(0, 0))
    refuse_devices(pair.a, pair.b.listen()["handle"], (1, 2))
    for one, other in ((pair.a, pair.b), (pair.b, pair.a)):
        sender, receiver = ends_between(one, other, 1000, 1)
        move(sender, receiver, 1000, 1)


def test_home_nic_serves_devices_of_other_ranks(wires: Make) -> None:
    """The NICs of rank a's host serve one process each, and the host has two ranks."""
    pair = wires(2, LOCAL_WORLD_SIZE="2")
    listening = pair.a.listen(device=1)
    assert listens_at(listening["handle"], address(0, 0))
    for by in (0, 1):
        for one, other, devices in ((pair.b, pair.a, (by, 1)), (pair.a, pair.b, (1, 0))):
            sender, receiver = ends_between(one, other, 1000, by, devices=devices)
            move(sender, receiver, 1000, by)


def test_home_nic_serves_a_nic_that_cannot_be_opened(rails: Make) -> None:
    pair = rails(3, down=(1,))
    assert [rank.devices() for rank in pair.ranks] == [3, 3]
    assert listens_at(pair.a.listen(device=1)["handle"], address(0, 0))
    for to in (0, 1, 2):
        sender, receiver = ends_between(pair.b, pair.a, 1000, to, devices=(to, to))
        move(sender, receiver, 1000, to)


def test_unused_shared_nic_has_no_thread(rails: Make) -> None:
    """Its engine starts at its first use."""
    pair = rails(4)
    before = pair.a.resources()["threads"]
    sender, receiver = ends_between(pair.a, pair.b, 1000, 1)
    move(sender, receiver, 1000, 1)
    home = pair.a.resources()["threads"]
    pair.a.listen(device=2)
    assert pair.a.resources()["threads"] == home + 1
    assert home - before <= 1, "a thread of the test, for its calls of test"


def test_devices_stay_after_reload(rails: Make) -> None:
    """A later communicator opens the NICs again."""
    pair = rails(2)
    for _ in range(3):
        for rank in pair.ranks:
            rank.reset()
            rank.finalize()
        for rank in pair.ranks:
            assert rank.init() == 2
        for device in (1, 0):
            sender, receiver = ends_between(pair.a, pair.b, 1000, 1, devices=(device, device))
            move(sender, receiver, 1000, 1)
