# SPDX-License-Identifier: Apache-2.0
"""Two ranks with a plugin, for every transport and version of the interface.

    pytest tests/plugin                        all transports, v4, v6, v8 and v12
    pytest tests/plugin --api 8 --transport wire
    pytest tests/plugin --plugin ./libnccl-net.so --transport kernel

Transports say how the two processes reach each other: kernel (the plain
kernel-TCP plugin over loopback), wire (HARP over shared memory), packet (HARP
between two namespaces; needs root).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from plugin_peer import Peer

from harp import paths

TRANSPORTS = ("kernel", "wire", "packet")
# HARP_TEST_APIS=4,12: a shorter list, for builds that are slow.
APIS = tuple(map(int, os.environ.get("HARP_TEST_APIS", "4,6,8,12").split(",")))
TIMEOUT_MS = 3000  # a lost peer is noticed in so long, in these tests


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--plugin", help="the libnccl-net.so to test (the built ones)")
    parser.addoption("--api", type=int, help="only this version of the interface")
    parser.addoption("--transport", choices=TRANSPORTS, help="only this transport")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # Options of this folder are unknown where pytest began further up: then all apply.
    if "transport" not in metafunc.fixturenames:
        return
    api = metafunc.config.getoption("--api", default=None)
    transport = metafunc.config.getoption("--transport", default=None)
    metafunc.parametrize(
        "transport", [transport] if transport else TRANSPORTS, indirect=True, scope="module"
    )
    metafunc.parametrize("api", [api] if api else APIS, ids=lambda value: f"v{value}")


@dataclass
class Side:
    """How one of the two processes is started."""

    prefix: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Transport:
    name: str
    plugin: Path
    sides: tuple[Side, Side]


def _configuration(folder: Path, device: str, address: str) -> dict[str, str]:
    """A HARP process's environment, with a configuration file of its own."""
    folder.mkdir()
    (folder / "ztcp0.conf").write_text(f"device = {device}\naddress = {address}\n")
    (folder / "run").mkdir()
    return {
        "HARP_CONF_DIR": str(folder),
        "HARP_RUN_DIR": str(folder / "run"),
        "HARP_TIMEOUT_MS": str(TIMEOUT_MS),
    }


def _kernel() -> Iterator[tuple[Side, Side]]:
    environment = {"NCCL_SOCKET_IFNAME": "lo", "HARP_TIMEOUT_MS": str(TIMEOUT_MS)}
    yield Side(environment=environment), Side(environment=environment)


def _wire(folder: Path) -> Iterator[tuple[Side, Side]]:
    memory = Path(f"/dev/shm/harp-conformance-{uuid.uuid4().hex[:12]}")
    try:
        yield (
            Side(environment=_configuration(folder / "a", f"wire:{memory}", "10.9.0.1/24")),
            Side(environment=_configuration(folder / "b", f"wire:{memory}", "10.9.0.2/24")),
        )
    finally:
        for ring in memory.parent.glob(f"{memory.name}*"):  # a killed rank leaves its own
            ring.unlink()


def _packet(folder: Path) -> Iterator[tuple[Side, Side]]:
    from harp.testing.lab import Lab

    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    with Lab(hosts=2, wire="veth-1500") as lab:
        first, second = (
            Side(
                list(host.command([])),
                _configuration(folder / f"{host.index}", f"packet:{host.interface}", "kernel"),
            )
            for host in lab.hosts
        )
        yield first, second


@pytest.fixture(scope="module")
def transport(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Transport]:
    given = request.config.getoption("--plugin", default=None)
    name = request.param
    built = paths.kernel_plugin_path if name == "kernel" else paths.nccl_plugin_path
    plugin = Path(given) if given else built()
    folder = tmp_path_factory.mktemp(name)
    makers = {"kernel": _kernel, "wire": lambda: _wire(folder), "packet": lambda: _packet(folder)}
    for sides in makers[name]():
        yield Transport(name, plugin, sides)


class Pair:
    """Two ranks, a and b, with the plugin loaded and brought up."""

    def __init__(self, transport: Transport, api: int) -> None:
        self.api = api
        self.lost = 2 if api < 6 else 6  # ncclSystemError, ncclRemoteError
        self.max_requests = 8 if api < 7 else 32
        self.ranks = [Peer(side.prefix, side.environment) for side in transport.sides]
        self.a, self.b = self.ranks
        try:
            # One after the other: over a wire, the first makes what the second joins.
            for rank in self.ranks:
                rank.open(path=str(transport.plugin), api=api)
                assert rank.init() == 1
        except BaseException:
            self.end()
            raise

    def comm(self, sender: Peer, receiver: Peer) -> tuple[int, int]:
        """A connection: the sender's comm and the receiver's. Connect goes before accept."""
        listening = receiver.listen()
        sending = sender.connect(handle=listening["handle"])["comm"]
        assert sending, "connect did not come through"
        receiving = receiver.accept(listener=listening["listener"])["comm"]
        assert receiving, "accept did not come through"
        receiver.close_listener(listener=listening["listener"])
        return sending, receiving

    def end(self) -> None:
        for rank in self.ranks:  # together, as the ranks of a job
            rank.dismiss()
        for rank in self.ranks:
            rank.end()


@pytest.fixture
def pair(transport: Transport, api: int) -> Iterator[Pair]:
    ranks = Pair(transport, api)
    try:
        yield ranks
    finally:
        ranks.end()
