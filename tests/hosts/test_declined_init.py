# SPDX-License-Identifier: Apache-2.0
"""HARP declines a wrong configuration: init fails, NCCL uses its next transport, and one line says
what is wrong, where, and how to correct it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ranks import API, START_S, SYSTEM_ERROR, Failed, Perf, Rank, Site, packet_site, wire_path

from tools.hosts.lab import Host, Lab


def declines(site: Site, api: int = API) -> str:
    """The only warning of a harp-perf whose init must fail. It does not reach its rendezvous."""
    with Perf(site, ["sendrecv", "--api", str(api), "--timeout", "5"], 0, "127.0.0.1:9") as rank:
        assert rank.wait(START_S) == 1, rank.lines()
        (said,) = rank.lines("harp perf:")
        assert re.search(r"declines: init: nccl\w+Error, 0 devices; NCCL would go on", said), said
        assert "NCCL_DEBUG" not in said, "the warning has the reason"
        (warning,) = rank.warnings
        assert not rank.lines("NCCL INFO")
        assert not site.published()
    return warning


@pytest.fixture
def host(lab: Lab) -> Host:
    return lab.hosts[0]


@pytest.fixture
def site(host: Host, tmp_path: Path) -> Site:
    """A site with a valid configuration."""
    return packet_site(tmp_path, host)


def test_valid_configuration_is_accepted(site: Site) -> None:
    """The reference: each other test changes one thing."""
    with Rank(site) as rank:
        rank.init()
        assert rank.warnings == []
        (chosen,) = rank.lines("NCCL INFO")
        assert "packet:eth0: " in chosen and "all hosts of the job must use HARP" in chosen


@pytest.mark.parametrize("api", [4, 6, 8, 12])
def test_folder_without_configuration_declines(tmp_path: Path, api: int) -> None:
    warning = declines(Site(tmp_path), api)
    assert f"no configuration: folder {tmp_path} holds no ztcp*.conf" in warning
    assert "run 'harp setup', or name the folder in HARP_CONF_DIR" in warning


def test_missing_folder_declines(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    warning = declines(Site(tmp_path, environment={"HARP_CONF_DIR": str(missing)}))
    assert f"no configuration: folder {missing}: No such file or directory" in warning
    assert "run 'harp setup'" in warning


def test_unknown_key_declines(tmp_path: Path) -> None:
    warning = declines(Site(tmp_path).configure("device = packet:eth0\n\nadress = kernel\n"))
    assert f"{tmp_path}/ztcp0.conf:3: unknown key 'adress'" in warning
    assert "the keys are device, address, gateway," in warning


@pytest.mark.parametrize(
    "line,expected",
    [
        ("address = 10.0.0.300/24", "expected an IPv4 address with its prefix"),
        ("device = eth0", "expected packet:IFACE"),
        ("flows = many", "expected a whole number from 1 to 16"),
        ("timeout_ms = 5", "expected a whole number from 100 to 3600000"),
        ("mtu =", "mtu has no value"),
        ("mac = 01:00:00:00:00:01", "not a multicast address"),
        ("peers = 10.0.0.0/33", "expected a list of at most 64 networks"),
        ("cc = bbr", "expected cubic"),
        ("just words", "is not of the form key = value"),
        ("device = fault:drop=2|packet:eth0", "drop takes a probability, 0 to 1"),
    ],
)
def test_invalid_value_declines(tmp_path: Path, line: str, expected: str) -> None:
    text = line if line.startswith("device") else f"device = packet:eth0\n{line}"
    warning = declines(Site(tmp_path).configure(text + "\n"))
    assert expected in warning
    if "fault" in line:
        assert "drop=2" in warning
    else:
        assert f"{tmp_path}/ztcp0.conf:{text.count(chr(10)) + 1}: " in warning


def test_invalid_value_in_environment_declines(site: Site) -> None:
    site.environment["HARP_TIMEOUT_MS"] = "soon"
    warning = declines(site)
    assert "HARP_TIMEOUT_MS" in warning and "'soon'" in warning
    assert "expected a whole number from 100 to 3600000" in warning


def test_unknown_variable_is_named_with_suggestion(site: Site) -> None:
    """HARP works all the same, and warns once of each unknown variable."""
    site.environment.update(HARP_FLOW="4", HARP_ELEPHANT="1", HARP_TEST_SEED="7", HARP_FLOWS="2")
    with Rank(site) as rank:
        rank.init()
        assert sorted(line.partition("HARP: ")[2] for line in rank.warnings) == [
            "nothing reads the variable HARP_ELEPHANT; harp env --defaults lists all variables",
            "nothing reads the variable HARP_FLOW; is HARP_FLOWS meant? harp env --defaults "
            "lists all variables",
        ]
        rank.do("finalize")
        rank.init()
        assert len(rank.warnings) == 2


def test_unreachable_gateway_declines(site: Site, host: Host) -> None:
    text = f"device = packet:{host.interface}\naddress = {host.own_address}/24\n"
    warning = declines(site.configure(text + "gateway = 10.78.0.1\n"))
    assert "gateway = 10.78.0.1 is outside the address's network (/24)" in warning


def test_missing_interface_declines(site: Site) -> None:
    warning = declines(site.configure("device = packet:eth7\n"))
    assert "packet:eth7: no such interface in this network namespace" in warning
    assert "which has: lo eth0; correct device" in warning


def test_interface_that_is_down_declines(site: Site, host: Host) -> None:
    host.set_link(False)
    try:
        warning = declines(site)
    finally:
        host.set_link(True)
    assert "packet:eth0: the interface is down; ip link set eth0 up" in warning


def test_kernel_address_as_own_address_declines(site: Site, host: Host) -> None:
    text = f"device = packet:{host.interface}\naddress = {host.address}/24\n"
    warning = declines(site.configure(text))
    assert f"packet:eth0: the kernel already uses the address {host.address}" in warning
    assert "set address = kernel to share it, or choose one" in warning


@pytest.mark.slow
@pytest.mark.parametrize(
    "device,more,expected",
    [
        ("0000:ff:1f.7", "", "dpdk:0000:ff:1f.7: there is no such PCI device; see lspci -D"),
        ("ff:1f.7", "", "dpdk:0000:ff:1f.7: there is no such PCI device; see lspci -D"),
        ("no_such_driver", "", "dpdk:no_such_driver: DPDK cannot open the device"),
        ("net_vhost0,iface=/nowhere/v", "", "cannot create a socket at /nowhere/v: No such file"),
        ("net_vhost0,iface={}/v;tso=2", "", "unknown option 'tso=2'; the options after"),
        ("net_vhost0,iface={}/v", "hugepages = 1000000\n", "= 1000000 asks for more than the"),
        ("net_vhost0,iface={}/v", "instances = 2\n", "lower `instances`, or give the device q"),
        ("virtio_user0,path={}/v", "", "no process has listened at {}/v for 10 s: start"),
    ],
    ids=["absent", "short id", "no driver", "no folder", "option", "hugepages", "queues", "alone"],
)  # fmt: skip
def test_invalid_dpdk_device_declines(
    tmp_path: Path, device: str, more: str, expected: str
) -> None:
    """Software devices only; tests/vm has the cases with a NIC on the PCI bus."""
    device = device.format(tmp_path)
    text = f"device = dpdk:{device}\naddress = 10.9.0.1/24\n{more}"
    assert expected.format(tmp_path) in declines(Site(tmp_path).configure(text))
    assert not (tmp_path / "v").exists()


DROPPED = ["setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw"]
# Allows reading folders of other users: a checkout is often in one.
ENTERS = "-all,+dac_read_search"
NOBODY = [
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *(f"--inh-caps={ENTERS}", f"--ambient-caps={ENTERS}"),
]


@pytest.mark.parametrize("wrapper", [DROPPED, NOBODY], ids=["dropped", "another user"])
def test_missing_cap_net_raw_declines(site: Site, wrapper: list[str]) -> None:
    _let_everybody_in(site.folder)
    site.prefix = [*site.prefix, *wrapper]
    warning = declines(site)
    assert "packet:eth0: not allowed to open a packet socket" in warning
    assert "give the process CAP_NET_RAW" in warning
    assert "--cap-add NET_RAW" in warning


def _let_everybody_in(folder: Path) -> None:
    """Opens pytest's folders, which only their owner may enter, to all users."""
    for one in (folder, *folder.parents):
        if one == Path("/tmp"):
            break
        one.chmod(0o755)
    (folder / "run").chmod(0o777)


@pytest.fixture
def wires() -> Iterator[Callable[[], Path]]:
    made: list[Path] = []

    def make() -> Path:
        made.append(wire_path())
        return made[-1]

    yield make
    for path in made:
        assert not path.exists(), "a wire's ends have left their file behind"


def exclusive(folder: Path, wire: Path, number: int, name: str) -> Site:
    """A file that only one process can claim."""
    return Site(folder).configure(f"device = wire:{wire}\naddress = 10.9.0.{number}/24\n", name)


def test_all_files_claimed_declines(tmp_path: Path, wires: Callable[[], Path]) -> None:
    site = exclusive(tmp_path, wires(), 1, "ztcp0.conf")
    exclusive(tmp_path, wires(), 1, "ztcp1.conf")
    with Rank(site) as first, Rank(site) as second:
        first.init(devices=2)
        second.init(devices=2)
        with Rank(site) as third:
            with pytest.raises(Failed) as failure:
                third.init()
            assert (failure.value.call, failure.value.code) == ("init", SYSTEM_ERROR)
            (warning,) = third.warnings
            assert f"all ztcp*.conf in {tmp_path} are claimed" in warning
            for name, holder in (("ztcp0.conf", first), ("ztcp1.conf", second)):
                assert f"{name} by process {holder.process.pid} (rank)" in warning
            assert "end one of these, or add a file" in warning
            # A claim also ends with finalize, so a later init of the process gets the file.
            first.do("finalize")
            third.init(devices=2)
            third.do("finalize")
        second.do("finalize")


def test_fewer_files_than_local_ranks_declines(tmp_path: Path, wires: Callable[[], Path]) -> None:
    """All ranks decline: a job must not mix transports by accident."""
    site = exclusive(tmp_path, wires(), 1, "ztcp0.conf")
    exclusive(tmp_path, wires(), 1, "ztcp1.conf")
    for rank in range(3):
        site.environment.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="3")
        warning = declines(site)
        assert "2 files for 3 local ranks" in warning
        assert f"{tmp_path} has too few ztcp*.conf" in warning
        assert "add 1, or share one with address = kernel" in warning


def test_harp_disable_declines_with_one_info_line(site: Site) -> None:
    """The user requests it, so it is one INFO line and no warning."""
    site.environment.update(HARP_DISABLE="1", NCCL_DEBUG="INFO")
    with Perf(site, ["sendrecv"], 0, "127.0.0.1:9") as rank:
        assert rank.wait(START_S) == 1
        (said,) = rank.lines("harp perf:")
        assert "declines: init" in said
        (line,) = rank.lines("] NCCL ")
        assert "INFO HARP: HARP_DISABLE=1 in the environment: HARP declines" in line
        assert "unset it to use HARP" in line


def test_harp_disable_is_silent_without_debug(site: Site) -> None:
    site.environment.update(HARP_DISABLE="1")
    with Perf(site, ["sendrecv"], 0, "127.0.0.1:9") as rank:
        assert rank.wait(START_S) == 1
        (said,) = rank.lines("harp perf:")
        assert said.endswith("; NCCL_DEBUG=INFO shows the reason")
        assert rank.lines("] NCCL ") == []
