# SPDX-License-Identifier: Apache-2.0
"""ztcp*.conf: every key, every error line, and any bytes at all."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harp import _tables

PACKET = b"device = packet:eth0\n"
OWN = b"device = dpdk:0000:00:06.0\naddress = 10.0.3.7/24\n"


def value(text: bytes, key: str) -> str:
    return _tables.parse(text)[key][0]


def error(text: bytes) -> str:
    with pytest.raises(_tables.ConfigError) as caught:
        _tables.parse(text, "/etc/ztcp3.conf")
    return str(caught.value)


def test_defaults_of_a_packet_file() -> None:
    values = {key: text for key, (text, _) in _tables.parse(PACKET).items()}
    assert values == {
        "device": "packet:eth0",
        "address": "kernel",
        "gateway": "",
        "mtu": "",
        "mac": "",
        "gpu": "any",
        "pci_path": "",
        "speed_mbps": "",
        "instances": "",
        "cores": "",
        "flows": "",
        "stripe": "none",
        "threads": "auto",
        "tcp_ports": "",
        "peers": "any",
        "cc": "cubic",
        "rto_min_us": "5000",
        "timeout_ms": "60000",
        "hugepages": "",
    }


def test_own_address_defaults_to_dynamic_ports() -> None:
    assert value(OWN, "tcp_ports") == "49152-65535"


@pytest.mark.parametrize(
    "line, key, expected",
    [
        ("device=fault:drop=0.1|packet:eth0", "device", "fault:drop=0.1|packet:eth0"),
        ("device = xdp:eth0", "device", "xdp:eth0"),
        ("device = xdp:eth0,mode=copy", "device", "xdp:eth0,mode=copy"),
        (
            "device = dpdk:virtio_user0,path=/x,server=1\naddress = 10.0.0.1/32",
            "device",
            "dpdk:virtio_user0,path=/x,server=1",
        ),
        ("device = wire:/dev/shm/w0\naddress = 10.0.0.1/31", "address", "10.0.0.1/31"),
        ("gateway = 10.0.3.1", "gateway", "10.0.3.1"),
        ("mtu = 9000", "mtu", "9000"),
        ("mac = 02:00:5E:00:53:01", "mac", "02:00:5e:00:53:01"),
        ("gpu = 3B:00.0", "gpu", "0000:3b:00.0"),
        ("gpu = 00000000:3B:00.0", "gpu", "0000:3b:00.0"),
        (
            "pci_path = /sys/devices/pci0000:00/0000:00:06.0",
            "pci_path",
            "/sys/devices/pci0000:00/0000:00:06.0",
        ),
        ("pci_path = none", "pci_path", ""),
        ("speed_mbps = 100000", "speed_mbps", "100000"),
        ("instances = 3\ncores = 2, 4-5", "cores", "2,4,5"),
        ("flows = 4", "flows", "4"),
        ("tcp_ports = 50000-50999", "tcp_ports", "50000-50999"),
        ("peers = 10.0.0.0/8 , 192.168.1.9", "peers", "10.0.0.0/8,192.168.1.9/32"),
        ("peers = 10.1.2.3/8", "peers", "10.0.0.0/8"),
        (
            "peers = " + ", ".join(["100.100.100.100/32"] * 64),
            "peers",
            ",".join(["100.100.100.100/32"] * 64),
        ),
        ("rto_min_us = 1000", "rto_min_us", "1000"),
        ("timeout_ms = 500", "timeout_ms", "500"),
        ("hugepages = 1024", "hugepages", "1024"),
        ("cc = cubic  # the only one", "cc", "cubic"),
        ("\t mtu=1400\r", "mtu", "1400"),
    ],
)
def test_valid_values_are_parsed(line: str, key: str, expected: str) -> None:
    text = line.encode() if line.startswith("device") else PACKET + line.encode()
    values = _tables.parse(text)
    assert values[key] == (expected, "file")


@pytest.mark.parametrize(
    "line, allowed",
    [
        ("device = eth0", "packet:IFACE"),
        ("device = packet:", "packet:IFACE"),
        ("device = packet:a-name-that-is-too-long", "packet:IFACE"),
        ("device = fault:drop=1", "packet:IFACE"),
        ("device = xdp:", "xdp:IFACE"),
        ("device = xdp:,mode=copy", "xdp:IFACE"),
        ("device = xdp:a-name-that-is-too-long,mode=copy", "xdp:IFACE"),
        ("device = wire:", "wire:PATH"),
        ("address = 10.0.3.7", "with its prefix"),
        ("address = 10.0.3.7/33", "with its prefix"),
        ("address = 10.0.3.0/24", "with its prefix"),
        ("address = 10.0.3.255/24", "with its prefix"),
        ("address = 127.0.0.1/8", "with its prefix"),
        ("address = 224.0.0.1/24", "with its prefix"),
        ("address = ::1/128", "with its prefix"),
        ("gateway = 10.0.3.1/24", "an IPv4 address"),
        ("mtu = 575", "from 576 to 65535"),
        ("mtu = 65536", "from 576 to 65535"),
        ("mtu = 0x600", "from 576 to 65535"),
        ("mtu = 99999999999999999999999999", "from 576 to 65535"),
        ("mac = 01:00:00:00:00:01", "not a multicast address"),
        ("mac = 02:00:00:00:00", "six bytes"),
        ("mac = 02:00:00:00:00:01:02", "six bytes"),
        ("gpu = 0", "a PCI id"),
        ("gpu = 0000:3b:00.8", "a PCI id"),
        ("pci_path = sys/devices", "begins with /"),
        ("speed_mbps = 0", "from 1 to"),
        ("instances = -1", "from 1 to 8"),
        ("cores = 3-1", "a list of CPU numbers"),
        ("cores = 1,,2", "a list of CPU numbers"),
        ("cores = 0-64", "a list of CPU numbers"),
        ("tcp_ports = 50000", "FIRST-LAST"),
        ("tcp_ports = 0-10", "FIRST-LAST"),
        ("tcp_ports = 51000-50000", "FIRST-LAST"),
        ("peers = 10.0.0.0/8,", "a list of at most 64 networks"),
        ("peers = " + ",".join(["10.0.0.1"] * 65), "a list of at most 64 networks"),
        ("device = dpdk:net_tap0,\tiface=x", "dpdk:"),
        ("cc = reno", "cubic"),
        ("mtu =", "has no value"),
    ],
)
def test_invalid_value_names_file_line_key_and_allowed_values(line: str, allowed: str) -> None:
    key = line.split(" = ")[0].split(" =")[0]
    prefix = b"# one\n" if key == "device" else PACKET
    text = error(prefix + line.encode() + b"\n")
    assert text.startswith(f"/etc/ztcp3.conf:2: {key}")
    assert allowed in text


@pytest.mark.parametrize(
    "text, said",
    [
        (b"", "device is missing"),
        (b"device = wire:/x", "address is missing"),
        (b"device = wire:/x\naddress = kernel", "address = kernel needs a packet or xdp device"),
        (
            PACKET + b"colour = blue",
            "ztcp3.conf:2: unknown key 'colour'; the keys are device, address",
        ),
        (
            PACKET + b"flow = 2",
            "unknown key 'flow' (do you mean flows?); the keys are device,",
        ),
        (PACKET + b"Adress = kernel", "unknown key 'Adress' (do you mean address?); the keys"),
        (PACKET + b"fl\x00w = 2", "unknown key 'fl?w'; the keys are"),
        (PACKET + b"x" * 70 + b" = 2", "...'; the keys are device"),
        (PACKET + b"\nmtu", "ztcp3.conf:3: 'mtu' is not of the form key = value"),
        (PACKET + b"mtu = 1500\nmtu = 1500", "ztcp3.conf:3: mtu is given twice, first in line 2"),
        (PACKET + b"instances = 2\ncores = 1", "cores lists 1 CPUs for instances = 2"),
        (
            PACKET + b"cores = 1-9",
            "cores lists 9 CPUs, one for each instance, and there are at most 8",
        ),
        (OWN + b"gateway = 10.0.4.1", "gateway = 10.0.4.1 is outside the address's network (/24)"),
        (
            PACKET + b"address = 10.0.0.1/31\ngateway = 10.0.0.2",
            "outside the address's network (/31)",
        ),
        (PACKET + b"mtu = 15\x0000", "mtu = '15?00' is not allowed"),
        (PACKET + b"mtu = 1500\x00", "mtu = '1500?' is not allowed"),
        (PACKET + b"pci_path = /" + b"x" * 5000, "pci_path = '/xxx"),
    ],
)
def test_invalid_files_are_refused(text: bytes, said: str) -> None:
    assert said in error(text)


@pytest.mark.parametrize(
    "text",
    [
        OWN + b"gateway = 10.0.3.1",
        b"device = dpdk:x\naddress = 10.0.3.7/32\ngateway = 169.254.1.1",
        PACKET + b"gateway = 10.9.9.9",  # beside which address of the kernel's, the port knows
    ],
)
def test_reachable_gateways_are_accepted(text: bytes) -> None:
    assert _tables.parse(text)["gateway"][1] == "file"


def test_errors_of_unnamed_text_have_no_file_and_line() -> None:
    for text, said in (
        (b"device = eth0", "device = 'eth0' is not allowed; expected packet:IFACE"),
        (b"colour = blue", "unknown key 'colour'; the keys are device"),
        (b"flows = 2", "device is missing"),
        (PACKET + b"mtu", "'mtu' is not of the form"),
        (PACKET + b"instances = 2\ncores = 1", "cores lists 1 CPUs"),
    ):
        with pytest.raises(_tables.ConfigError) as caught:
            _tables.parse(text, "")
        assert str(caught.value).startswith(said)


def test_too_large_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ztcp0.conf"
    path.write_bytes(PACKET + b"#" * 65536)
    assert "larger than 65536 bytes" in str(_tables.check_file(path))


def test_folder_instead_of_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in str(_tables.check_file(tmp_path))
    assert "cannot be opened" in str(_tables.check_file(tmp_path / "ztcp0.conf"))


def test_environment_overrides_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ztcp0.conf"
    path.write_bytes(PACKET + b"mtu = 1500\nflows = 2\n")
    monkeypatch.setenv("HARP_MTU", " 9000 ")
    values = _tables.load(path)
    assert values["mtu"] == ("9000", "environment")
    assert values["flows"] == ("2", "file")
    assert values["cc"] == ("cubic", "default")
    monkeypatch.setenv("HARP_MTU", "huge")
    assert str(_tables.check_file(path)).startswith("environment, HARP_MTU: mtu = 'huge'")


@pytest.mark.parametrize("key", [key["name"] for key in _tables.keys() if key["file_only"]])
def test_environment_does_not_override_file_only_keys(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ztcp0.conf"
    path.write_bytes(PACKET)
    before = _tables.load(path)
    monkeypatch.setenv(f"HARP_{key.upper()}", "nonsense")
    assert _tables.load(path) == before


def test_file_only_keys_are_listed() -> None:
    assert [key["name"] for key in _tables.keys() if key["file_only"]] == [
        "device",
        "address",
        "gateway",
        "mac",
        "gpu",
        "pci_path",
        "cores",
        "tcp_ports",
    ]


def test_packet_device_with_kernel_address_is_shareable() -> None:
    assert _tables.shareable(PACKET)
    assert _tables.shareable(b"device = fault:drop=0.1|packet:eth0")
    assert not _tables.shareable(PACKET + b"address = 10.0.0.1/24")
    assert not _tables.shareable(OWN)


def test_xdp_device_shares_the_kernels_address_by_default() -> None:
    """Any number of processes use it, unless it has options or an address of HARP's own."""
    values = _tables.parse(b"device = xdp:eth0")
    assert values["address"] == ("kernel", "default")
    assert _tables.shareable(b"device = xdp:eth0")
    assert not _tables.shareable(b"device = xdp:eth0,mode=copy")
    assert not _tables.shareable(b"device = xdp:eth0\naddress = 10.0.0.1/24")


def test_peers_key_limits_addresses() -> None:
    def allowed(peers: bytes, address: str) -> bool:
        return _tables.peer_allowed(PACKET + peers, socket.inet_aton(address))

    assert allowed(b"", "1.2.3.4")
    assert allowed(b"peers = 10.0.0.0/8,1.2.3.4", "10.255.0.1")
    assert allowed(b"peers = 10.0.0.0/8,1.2.3.4", "1.2.3.4")
    assert not allowed(b"peers = 10.0.0.0/8,1.2.3.4", "11.0.0.1")
    assert allowed(b"peers = 0.0.0.0/0", "11.0.0.1")


def test_effective_values_can_be_parsed_again() -> None:
    text = OWN + b"instances=2\ncores=0,7\npeers=10.0.0.0/9\nmac=02:00:00:00:00:01\ngpu=1:2.0\n"
    values = _tables.parse(text)
    again = "".join(f"{key} = {text}\n" for key, (text, _) in values.items() if text)
    assert {key: text for key, (text, _) in _tables.parse(again.encode()).items()} == {
        key: text for key, (text, _) in values.items()
    }


KEYS = st.sampled_from([key["name"].encode() for key in _tables.keys()])
VALUES = st.one_of(
    st.binary(max_size=80),
    st.text("0123456789.,:/-|abcdefx \t", max_size=80).map(str.encode),
    st.sampled_from([b"kernel", b"any", b"none", b"packet:eth0", b"10.0.0.1/24", b"fault:|"]),
)
LINES = st.one_of(st.binary(max_size=60), st.tuples(KEYS, VALUES).map(b" = ".join))


@settings(max_examples=400, deadline=None)
@given(st.lists(LINES, max_size=12).map(b"\n".join))
def test_any_bytes_give_values_or_one_error_line(text: bytes) -> None:
    try:
        _tables.parse(text, "/etc/ztcp0.conf")
    except _tables.ConfigError as wrong:
        assert str(wrong).startswith("/etc/ztcp0.conf:")
        assert str(wrong).isprintable()
        assert wrong.code == -22
