# SPDX-License-Identifier: Apache-2.0
"""harp setup keeps ARP of NICs in one subnet apart by sysctls, and undo restores them."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

Host = Any  # conftest's SetUpHost

NICS = ("nic0", "nic1.7")  # a VLAN's name has a dot
BOTH = tuple(word for name in NICS for word in ("--device", f"packet:{name}"))
KEYS = {"arp_ignore": 1, "arp_announce": 2}


def path_of(interface: str, key: str) -> str:
    return f"/proc/sys/net/ipv4/conf/{interface}/{key}"


def set_all(host: Host, interface: str, values: dict[str, int]) -> None:
    for key, value in values.items():
        host.host.write(path_of(interface, key), str(value))


def values_of(host: Host, interface: str) -> dict[str, int]:
    said = host.host.run(["cat", *(path_of(interface, key) for key in KEYS)]).stdout
    return dict(zip(KEYS, map(int, said.split())))


OFF = dict.fromkeys(KEYS, 0)


@pytest.fixture(autouse=True)
def nics(host: Host) -> Iterator[None]:
    """Two NICs in one subnet, with Linux's defaults."""
    first, second = NICS
    host.host.run(["ip", "link", "add", first, "type", "veth", "peer", "name", second])
    for number, name in enumerate(NICS, 1):
        host.host.run(["ip", "address", "add", f"10.79.0.{number}/24", "dev", name])
        host.host.run(["ip", "link", "set", name, "up"])
    for name in ("all", *NICS):
        set_all(host, name, OFF)
    yield
    set_all(host, "all", OFF)
    host.host.run(["ip", "link", "del", first])


def planned(host: Host, *args: str) -> list[str]:
    rows = json.loads(host.harp("setup", "plan", "--json", *args).stdout)["steps"]
    return [row["target"] for row in rows if row["kind"] == "sysctl"]


def test_sysctls_are_set_and_restored(host: Host) -> None:
    host.host.write(path_of(NICS[0], "arp_announce"), "1")
    before = host.state()
    assert "sysctl -w net.ipv4.conf.nic1/7.arp_ignore=1 (several NICs are in one subnet" in (
        host.harp("setup", "plan", *BOTH).stdout
    )
    assert [values_of(host, name)["arp_ignore"] for name in NICS] == [0, 0], "plan changed them"
    host.harp("setup", "apply", *BOTH)
    assert [values_of(host, name) for name in NICS] == [KEYS, KEYS]
    assert values_of(host, "all") == OFF
    assert "done     sysctl net.ipv4.conf.nic0.arp_ignore" in host.harp("setup", "status").stdout
    assert "nothing to change" in host.harp("setup", "--yes").stdout
    done = host.harp("setup", "undo").stdout
    assert "set net.ipv4.conf.nic0.arp_announce to 1 again" in done
    assert values_of(host, NICS[0]) == {"arp_ignore": 0, "arp_announce": 1}
    assert values_of(host, NICS[1]) == OFF
    assert host.state() == before


def test_values_are_restored_when_one_nic_is_left(host: Host) -> None:
    host.harp("setup", "apply", *BOTH)
    host.host.run(["ip", "link", "set", NICS[1], "down"])
    host.host.run(["ip", "address", "flush", "dev", NICS[1]])
    host.harp("setup", "apply", "--device", f"packet:{NICS[0]}")
    assert values_of(host, NICS[0]) == KEYS, "the other one may get its address yet"
    host.host.run(["ip", "link", "set", NICS[1], "up"])
    own = ("--device", f"packet:{NICS[1]}", "--address", "10.79.0.9/24")
    host.harp("setup", "apply", *own)
    assert [values_of(host, name) for name in NICS] == [OFF, OFF]
    assert "sysctl" not in host.harp("setup", "status").stdout
    host.harp("setup", "undo")


def test_lost_values_are_set_again(host: Host) -> None:
    """As after a reboot. Undo still restores the first values."""
    host.harp("setup", "apply", *BOTH)
    set_all(host, NICS[0], OFF)
    status = host.harp("setup", "status", code=1).stdout
    assert "missing  sysctl net.ipv4.conf.nic0.arp_ignore" in status
    host.harp("setup", "--yes")
    assert values_of(host, NICS[0]) == KEYS
    host.harp("setup", "undo")
    assert [values_of(host, name) for name in NICS] == [OFF, OFF]


def test_values_changed_later_are_kept(host: Host) -> None:
    host.harp("setup", "apply", *BOTH)
    host.host.write(path_of(NICS[0], "arp_ignore"), "2")
    host.harp("setup", "status")
    host.harp("setup", "undo")
    assert values_of(host, NICS[0]) == {"arp_ignore": 2, "arp_announce": 0}


def test_values_of_later_boot_are_kept(host: Host) -> None:
    """The administrator may have set the same values for each boot."""
    host.harp("setup", "apply", *BOTH)
    journal = host.conf / "setup-journal.json"
    document = json.loads(journal.read_text())
    for row in document["steps"]:
        if row["step"]["kind"] == "sysctl":
            row["step"]["boot"] = "an earlier one"
    journal.write_text(json.dumps(document))
    host.harp("setup", "undo")
    assert [values_of(host, name) for name in NICS] == [KEYS, KEYS]


def test_strict_rp_filter_becomes_loose(host: Host) -> None:
    """Unless policy routing leads out of each NIC."""
    host.host.write(path_of("all", "rp_filter"), "1")
    try:
        second = "net.ipv4.conf.nic1/7.rp_filter"  # the route of the subnet leads out of nic0
        assert [one for one in planned(host, *BOTH) if "rp_filter" in one] == [second]
        rule = ["from", "10.79.0.2", "lookup", "79"]
        host.host.run(["ip", "rule", "add", *rule])
        host.host.run(["ip", "route", "add", "10.79.0.0/24", "dev", NICS[1], "table", "79"])
        assert [one for one in planned(host, *BOTH) if "rp_filter" in one] == []
        host.host.run(["ip", "rule", "del", *rule])
        host.harp("setup", "apply", *BOTH)
        assert host.host.read(path_of(NICS[1], "rp_filter")).strip() == "2"
        assert "nothing to change" in host.harp("setup", "--yes").stdout
        host.harp("setup", "undo")
        assert host.host.read(path_of(NICS[1], "rp_filter")).strip() == "0"
    finally:
        host.host.write(path_of("all", "rp_filter"), "0")


def test_values_for_all_interfaces_are_enough(host: Host) -> None:
    host.harp("setup", "apply", *BOTH)
    set_all(host, "all", KEYS)
    set_all(host, NICS[0], OFF)
    host.harp("setup", "status")  # the values for all are in force
    host.harp("setup", "undo")
    assert planned(host, *BOTH) == []
    host.host.write(path_of("all", "arp_announce"), "1")
    assert planned(host, *BOTH) == [
        "net.ipv4.conf.nic0.arp_announce",
        "net.ipv4.conf.nic1/7.arp_announce",
    ]


def test_only_nics_in_one_subnet_need_sysctls(host: Host) -> None:
    assert planned(host, "--device", "packet:eth0", "--device", "packet:nic0") == []
    own = ("--address", "kernel", "--address", "10.79.0.9/24")
    assert planned(host, *BOTH, *own) == []


def test_nics_of_earlier_files_count(host: Host) -> None:
    host.harp("setup", "apply", "--device", "packet:nic0")
    assert len(planned(host, "--device", "packet:nic1.7")) == 4
    host.harp("setup", "undo")


def test_subnet_within_subnet_counts(host: Host) -> None:
    host.host.run(["ip", "address", "flush", "dev", NICS[0]])
    host.host.run(["ip", "address", "add", "10.79.0.1/16", "dev", NICS[0]])
    assert len(planned(host, *BOTH)) == 4


@pytest.mark.slow
def test_crash_at_any_step_is_undone(host: Host) -> None:
    before = host.state()
    with host.crashing() as run:
        for calls in range(60):
            status, said = run(calls, "setup", "apply", *BOTH)
            assert run(-1, "setup", "undo")[0] == 0
            assert [values_of(host, name) for name in NICS] == [OFF, OFF]
            assert host.state() == before
            if status == 0:
                break
            assert status == -signal.SIGKILL, said
    assert 10 <= calls < 59
