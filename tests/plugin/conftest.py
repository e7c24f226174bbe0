# SPDX-License-Identifier: Apache-2.0
"""Fixtures: two ranks with a plugin, for every transport and version of the interface.

    pytest tests/plugin                        all transports and versions
    pytest tests/plugin --api 8 --transport wire
    pytest tests/plugin --plugin ./libnccl-net.so --transport kernel
    pytest tests/plugin --api 12 --rounds 1000 -k reload

A transport connects the two processes: kernel (the kernel-TCP plugin over
loopback), wire (HARP over shared memory), packet (HARP between two namespaces;
needs root), xdp (the same over AF_XDP), flows (wire, with links of several
flows over several instances), ethdev (HARP over DPDK: vhost and virtio_user).
With --plugin, "kernel" stands for any plugin that reaches a peer over loopback;
tests that only HARP must pass are marked harp_only and skipped for it.

Most tests share two ranks. After each test, reset closes everything that is
open, as at the end of a job. Fresh ranks follow a test that ends a rank or
fails.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_wire import impair, start
from pairs import SHORT_TIMEOUT_MS, TIMEOUT_MS, Pair, Ranks, Side, Transport

from harp import api_versions, paths
from tools.hosts.ranks import remove_wire

__all__ = ["impair", "start"]

# HARP_TEST_TRANSPORTS=wire and HARP_TEST_APIS=4,12: shorter lists, for builds that are slow.
ALL_TRANSPORTS = "kernel,wire,flows,packet,xdp,ethdev"
TRANSPORTS = tuple(os.environ.get("HARP_TEST_TRANSPORTS", ALL_TRANSPORTS).split(","))
SOME_APIS = os.environ.get("HARP_TEST_APIS")
APIS = tuple(map(int, SOME_APIS.split(","))) if SOME_APIS else tuple(api_versions.APIS)
IN_ROUNDS = ("test_repeated_reload_leaks_nothing", "test_deregistered_memory_is_not_read_by_late")
# Transports for which a few versions are enough; HARP_TEST_FULL=1: all versions for some of them.
FEW_APIS: dict[str, tuple[int, ...]] = {"flows": (12,), "xdp": (12,), "ethdev": (4, 12)}
# One of each shape: the oldest, whose accept blocks and whose handles are short; one whose codes
# tell a lost peer; one without contexts; the newest.
SHAPES = (4, 6, 10, 12)
FULL = bool(os.environ.get("HARP_TEST_FULL"))
SANITIZED = "SANITIZER_RUNTIME" in os.environ
if not FULL:
    FEW_APIS |= {"kernel": (4, 12), "packet": (4, 12)}
if not FULL and SANITIZED:  # a port reaches the same code of each version
    FEW_APIS |= dict.fromkeys(("kernel", "packet", "ethdev"), (12,))
# Transports whose processes begin and end as those of packet do: the tests of that are left out.
SHARED_ONLY = () if FULL else ("xdp",)
# Transports that take a second to connect two processes: those tests run with one version.
ONE_SHAPE = () if FULL else ("ethdev",)
# Fixtures of tests that begin and end processes, or wait for a timeout.
OF_THEIR_OWN = {"fresh", "short_timeout"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--plugin", help="the libnccl-net.so to test (the built ones)")
    parser.addoption("--api", type=int, help="only this version of the interface")
    parser.addoption("--transport", choices=TRANSPORTS, help="only this transport")
    parser.addoption("--rounds", type=int, help="rounds of the reload and deregistration tests")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "harp_only: required of HARP, not of every plugin")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # pytest does not know this folder's options if it starts further up: then nothing is selected.
    if "transport" not in metafunc.fixturenames:
        return
    api = metafunc.config.getoption("--api", default=None)
    transport = metafunc.config.getoption("--transport", default=None)
    marks = list(metafunc.definition.iter_markers("harp_only"))
    waits = bool(OF_THEIR_OWN & set(metafunc.fixturenames))
    transports = [transport] if transport else [
        name for name in TRANSPORTS
        if not (marks and name == "kernel") and not (waits and name in SHARED_ONLY)
    ]  # fmt: skip
    # Versions of one shape share what waits. tools/test --fast takes the newest version over each
    # transport, and the oldest over wire.
    apis = [version for version in APIS if FULL or not waits or version in SHAPES]
    cases = [
        pytest.param(name, version, id=f"{name}-v{version}",
                     marks=() if version == 12 or (name == "wire" and version == 4 and not waits)
                     else pytest.mark.slow)
        for name in transports
        for version in ([api] if api else apis)
        if api or version in FEW_APIS.get(name, APIS)
        if api or version == 12 or not (waits and name in ONE_SHAPE)
    ]  # fmt: skip
    metafunc.parametrize(("transport", "api"), cases, indirect=["transport"], scope="module")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rounds = config.getoption("--rounds", default=None)
    for item in items:
        if rounds and item.name.startswith(IN_ROUNDS):
            item.add_marker(pytest.mark.timeout(60 + 3 * rounds))


def pytest_runtest_setup(item: pytest.Item) -> None:
    callspec = getattr(item, "callspec", None)
    if item.get_closest_marker("harp_only") and callspec.params["transport"] == "kernel":
        pytest.skip("only HARP must pass this test")


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    if outcome.get_result().failed:
        item.stash[FAILED] = True


def _configuration(folder: Path, device: str, address: str, more: str = "") -> dict[str, str]:
    """Writes a configuration file. Returns the environment of a HARP process that uses it."""
    folder.mkdir()
    (folder / "ztcp0.conf").write_text(f"device = {device}\naddress = {address}\n{more}")
    (folder / "run").mkdir()
    return {"HARP_CONF_DIR": str(folder), "HARP_RUN_DIR": str(folder / "run")}


def _kernel() -> Iterator[tuple[Side, Side]]:
    environment = {"NCCL_SOCKET_IFNAME": "lo"}
    yield Side(environment=environment), Side(environment=environment)


def _wire(folder: Path, more: str = "") -> Iterator[tuple[Side, Side]]:
    memory = Path(f"/dev/shm/harp-conformance-{uuid.uuid4().hex[:12]}")
    try:
        yield (
            Side(environment=_configuration(folder / "a", f"wire:{memory}", "10.9.0.1/24", more)),
            Side(environment=_configuration(folder / "b", f"wire:{memory}", "10.9.0.2/24", more)),
        )
    finally:
        remove_wire(memory)


def _ethdev(folder: Path) -> Iterator[tuple[Side, Side]]:
    """vhost creates the socket and virtio_user connects to it. virtio_user copies what it sends."""
    socket = folder / "vhost"
    devices = (f"dpdk:net_vhost0,iface={socket}", f"dpdk:virtio_user0,path={socket}")
    yield (
        Side(environment=_configuration(folder / "a", devices[0], "10.9.0.1/24")),
        Side(environment=_configuration(folder / "b", devices[1], "10.9.0.2/24")),
    )


def _kernel_nic(folder: Path, scheme: str) -> Iterator[tuple[Side, Side]]:
    from tools.hosts.lab import Lab

    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    if scheme == "xdp" and not (paths.build_dir() / "dpdk_glue" / "xdp_program.o").exists():
        pytest.skip("this build has no XDP (no clang)")
    with Lab(hosts=2, wire="veth-1500") as lab:
        first, second = (
            Side(
                list(host.command([])),
                _configuration(folder / f"{host.index}", f"{scheme}:{host.interface}", "kernel"),
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
    makers = {
        "kernel": _kernel,
        "wire": lambda: _wire(folder),
        "flows": lambda: _wire(folder, "instances = 2\nflows = 4\n"),
        "packet": lambda: _kernel_nic(folder, "packet"),
        "xdp": lambda: _kernel_nic(folder, "xdp"),
        "ethdev": lambda: _ethdev(folder),
    }
    for sides in makers[name]():
        yield Transport(name, plugin, sides)


@pytest.fixture(scope="module")
def ranks(transport: Transport) -> Iterator[Ranks]:
    shared = Ranks(transport)
    yield shared
    shared.drop()


def _failed(request: pytest.FixtureRequest) -> bool:
    return request.node.stash.get(FAILED, False)


@pytest.fixture
def pair(ranks: Ranks, api: int, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """The two ranks that the tests share."""
    taken = ranks.take(api)
    yield taken
    ranks.pair = None
    if _failed(request):
        taken.abandon()
    else:
        taken.reset()
        ranks.pair = taken


def _of_its_own(
    ranks: Ranks, request: pytest.FixtureRequest, api: int, timeout_ms: int
) -> Iterator[Pair]:
    ranks.drop()  # a wire connects only two ranks
    fresh = Pair(ranks.transport, api, timeout_ms)
    yield fresh
    if _failed(request):
        fresh.abandon()
    else:
        fresh.end()


@pytest.fixture
def fresh(ranks: Ranks, api: int, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two ranks of the test's own, for a test that changes or ends them."""
    yield from _of_its_own(ranks, request, api, TIMEOUT_MS)


@pytest.fixture
def short_timeout(ranks: Ranks, api: int, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two ranks of the test's own with a short timeout_ms, so that they soon notice a lost peer."""
    yield from _of_its_own(ranks, request, api, SHORT_TIMEOUT_MS)
