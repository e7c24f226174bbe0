# SPDX-License-Identifier: Apache-2.0
"""`harp check` among 8 ranks on 4 hosts finds each injected fault, and names host and remedy."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from crowd import Crowd, Result

from harp import paths
from tools.hosts.lab import Host, Lab, _ip

pytestmark = pytest.mark.slow

FULL = pytest.mark.skipif(not os.environ.get("HARP_TEST_FULL"), reason="a variant")
ROOT = Path(__file__).resolve().parents[2]
SYN = "tcp flags & (syn | ack) == syn"  # the first segment of a connection
QUICK = ("--quick",)
FAST, SLOW = "200mbit", "20mbit"


def named(host: Host) -> str:
    """A part of the host's name in reports."""
    return f"({host.address})"


def check_blames(result: Result, host: Host, about: str, *parts: str) -> None:
    """Every rank has ended with a fault, and each fault is about this thing and names this host."""
    assert set(result.codes) == {1}, result.text
    faults = result.faults_about(about)
    assert faults, result.text
    assert result.texts() == faults, result.text
    for part in parts:
        assert any(part in text for text in faults), faults
    for text in faults:
        assert named(host) in text


def enable_everywhere(crowd: Crowd) -> None:
    for host in crowd.lab.hosts:
        (crowd.libraries(host) / "libnccl-net.so").symlink_to(paths.nccl_plugin_path())


def test_disabled_host_is_named(crowd: Crowd) -> None:
    enable_everywhere(crowd)
    host = crowd.lab.hosts[2]
    folder = crowd.libraries(host)
    (folder / "libnccl-net.so").rename(folder / "bak.libnccl-net.so")
    crowd.args = QUICK
    result = crowd.run()
    check_blames(result, host, "HARP", "HARP is disabled", f"harp enable {folder}")
    pointed = ["harp check: faults: see the report of rank 0 at " in said for said in result.said]
    assert pointed == [rank in (2, 4, 6) for rank in range(8)]  # the first of each other host


@FULL
def test_host_that_declines_is_named(crowd: Crowd) -> None:
    enable_everywhere(crowd)
    host = crowd.lab.hosts[1]
    crowd.environments[host.index] = {"HARP_DISABLE": "1"}
    crowd.args = QUICK
    result = crowd.run()
    assert set(result.codes) == {1}
    (said,) = result.faults_about("HARP")
    assert named(host) in said and "so HARP declines" in said and "unset HARP_DISABLE" in said


def older_plugin(crowd: Crowd, host: Host, lowest: int, highest: int) -> None:
    """Puts a plugin of other wire versions on a host."""
    target = crowd.libraries(host) / "libnccl-net.so"
    defines = [
        f'-DREAL="{paths.nccl_plugin_path()}"',
        f"-DLOWEST={lowest}",
        f"-DHIGHEST={highest}",
    ]
    source = Path(__file__).with_name("older_plugin.c")
    args = ["cc", "-std=c11", "-shared", "-fPIC", f"-I{ROOT}", *defines, "-o", f"{target}"]
    subprocess.run([*args, f"{source}"], check=True, timeout=60)


def test_older_wire_version_is_named(crowd: Crowd) -> None:
    host = crowd.lab.hosts[1]
    older_plugin(crowd, host, 1, 2)
    for other in crowd.lab.hosts:
        if other is not host:
            (crowd.libraries(other) / "libnccl-net.so").symlink_to(paths.nccl_plugin_path())
    crowd.args = QUICK
    result = crowd.run()
    check_blames(
        result, host, "wire version", "wire versions 1 to 2", "they work together",
        "install one release on all hosts",
    )  # fmt: skip


@FULL
def test_foreign_wire_version_is_named(crowd: Crowd) -> None:
    enable_everywhere(crowd)
    host = crowd.lab.hosts[3]
    (crowd.libraries(host) / "libnccl-net.so").unlink()
    older_plugin(crowd, host, 8, 9)
    crowd.args = QUICK
    result = crowd.run()
    assert any("do not understand" in text for text in result.faults_about("wire version"))
    assert any(
        "install one release" in text and named(host) in text
        for text in result.faults_about("wire version")
    )
    assert all(named(host) in text for text in result.faults_about("link"))


@contextmanager
def link_mtu(namespace: str, interface: str, mtu: int) -> Iterator[None]:
    _ip("-n", namespace, "link", "set", interface, "mtu", mtu)
    try:
        yield
    finally:
        _ip("-n", namespace, "link", "set", interface, "mtu", 9000)


def test_small_mtu_of_host_is_named(crowd: Crowd) -> None:
    host = crowd.lab.hosts[2]
    crowd.args = QUICK
    with link_mtu(host.namespace, host.interface, 1500):
        result = crowd.run()
    check_blames(result, host, "MTU", "MTU 1500", "ip link set eth0 mtu 9000")


def test_small_mtu_of_path_is_named(crowd: Crowd) -> None:
    """Both hosts have 9000, and the port of the switch between them has 1500."""
    host = crowd.lab.hosts[3]
    crowd.args = QUICK
    with link_mtu(crowd.lab.middlebox, f"port{host.index}", 1500):
        result = crowd.run()
    check_blames(result, host, "path MTU", "1500 bytes pass, and 9000 do not", "set mtu = 1500")


@contextmanager
def firewall(namespace: str, family: str, chain: str, rule: str) -> Iterator[None]:
    """A table of nft with one rule."""
    if not shutil.which("nft"):
        pytest.skip("needs nft: apt-get install nftables")
    table = f"table {family} harpcheck {{ chain c {{ {chain} {rule}; }}; }}"
    args = ["ip", "netns", "exec", namespace, "nft"]
    subprocess.run([*args, "-f", "-"], input=table, text=True, check=True, timeout=30)
    try:
        yield
    finally:
        drop = f"delete table {family} harpcheck"
        subprocess.run([*args, "-f", "-"], input=drop, text=True, check=True, timeout=30)


def test_firewall_that_drops_is_named(crowd: Crowd) -> None:
    host = crowd.lab.hosts[1]
    crowd.args = QUICK
    hook = "type filter hook forward priority 0;"
    rule = f'oifname "port{host.index}" {SYN} drop'
    with firewall(crowd.lab.middlebox, "bridge", hook, rule):
        result = crowd.run()
    assert set(result.codes) == {1}
    kernel, plugin = result.faults_about("firewall"), result.faults_about("link")
    assert result.texts() == [*kernel, *plugin]
    for faults in (kernel, plugin):
        assert len(faults) == 1, result.text
        assert "swallowed" in faults[0] and "a firewall drops it" in faults[0]
        assert named(host) in faults[0] and "allow TCP" in faults[0]


def test_firewall_that_resets_is_named(crowd: Crowd) -> None:
    host = crowd.lab.hosts[2]
    crowd.args = QUICK
    hook = "type filter hook input priority 0;"
    with firewall(host.namespace, "ip", hook, f"{SYN} reject with tcp reset"):
        result = crowd.run()
    assert set(result.codes) == {1}
    kernel = result.faults_about("firewall")
    assert len(kernel) == 1, result.text
    assert "is reset: a firewall rejects it" in kernel[0] and named(host) in kernel[0]
    assert "nft list ruleset" in kernel[0]
    plugin = result.faults_about("link")
    assert len(plugin) == 1 and f"HARP's TCP to vm {named(host)} is reset" in plugin[0], result.text
    assert result.texts() == [*kernel, *plugin]


@contextmanager
def second_address(hosts: list[Host], host: Host, address: str) -> Iterator[None]:
    """The host has another one's address in place of its own."""
    args = ["-n", host.namespace, "address"]
    _ip(*args, "del", f"{host.address}/24", "dev", host.interface)
    _ip(*args, "add", f"{address}/24", "dev", host.interface)
    try:
        yield
    finally:
        _ip(*args, "del", f"{address}/24", "dev", host.interface)
        _ip(*args, "add", f"{host.address}/24", "dev", host.interface)
        for one in hosts:  # these remember the wrong hardware address
            _ip("-n", one.namespace, "neigh", "flush", "all")


def test_duplicate_address_is_named(crowd: Crowd) -> None:
    one, other = crowd.lab.hosts[1], crowd.lab.hosts[3]
    crowd.args = QUICK
    with second_address(crowd.lab.hosts, other, one.address):
        result = crowd.run()
    assert set(result.codes) == {1}
    faults = result.faults_about("address")
    assert len(faults) == 1, result.text
    assert result.texts() == faults, result.text  # what follows from it is no news
    for part in (f"have the same address {one.address}", one.mac, other.mac, "another address"):
        assert part in faults[0]


def test_wrong_key_is_named(crowd: Crowd, tmp_path: Path) -> None:
    host = crowd.lab.hosts[3]
    for one in crowd.lab.hosts:
        path = tmp_path / f"key{one.index}"
        path.write_text("another battery staple" if one is host else "correct horse battery")
        path.chmod(0o600)
        crowd.environments[one.index] = {"HARP_KEY_FILE": str(path)}
    crowd.args = QUICK
    result = crowd.run()
    assert set(result.codes) == {1}
    faults = result.faults_about("key")
    assert len(faults) == 1, result.text
    assert named(host) in faults[0] and "copy the file" in faults[0]
    assert str(tmp_path / "key3") in faults[0]
    assert all(named(host) in text for text in result.texts()), result.text


@contextmanager
def rates(lab: Lab, slow: Host) -> Iterator[None]:
    """Holds all hosts to one rate, and one of them to a tenth of it, both ways."""
    ends = [(host, host.namespace, host.interface) for host in lab.hosts]
    ends += [(host, lab.middlebox, f"port{host.index}") for host in lab.hosts]
    tc = ["ip", "netns", "exec"]
    for host, namespace, interface in ends:
        rate = SLOW if host is slow else FAST
        shape = ["root", "tbf", "rate", rate, "burst", "32kb", "limit", "1mb"]
        args = [*tc, namespace, "tc", "qdisc", "replace", "dev", interface, *shape]
        subprocess.run(args, check=True, timeout=30)
    try:
        yield
    finally:
        for _, namespace, interface in ends:
            args = [*tc, namespace, "tc", "qdisc", "del", "dev", interface, "root"]
            subprocess.run(args, check=True, timeout=30)


def test_link_at_a_tenth_is_named(crowd: Crowd) -> None:
    host = crowd.lab.hosts[2]
    with rates(crowd.lab, host):
        result = crowd.run()
    check_blames(result, host, "slow host", "Gbit/s on links with it", "ethtool")
    page = (crowd.folder / "report.html").read_text()
    assert "slow host" in page and named(host) in page
