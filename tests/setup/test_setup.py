# SPDX-License-Identifier: Apache-2.0
"""harp setup on a host of its own: what it writes, that it repeats nothing, and
that undo leaves the host as it was, whatever came between."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest

Host = Any  # conftest's SetUpHost

OWN = "10.77.0.102"
OWN_ARGUMENTS = ("--device", "packet:eth0", "--address", f"{OWN}/24")


@pytest.fixture
def forwarding(host: Host) -> Iterator[None]:
    host.host.write("/proc/sys/net/ipv4/ip_forward", "1")
    yield
    host.host.write("/proc/sys/net/ipv4/ip_forward", "0")
    host.host.run(["ip", "route", "del", "blackhole", f"{OWN}/32"], check=False)


def blackholes(host: Host) -> str:
    return str(host.host.run(["ip", "route", "show", "type", "blackhole"]).stdout).strip()


def test_with_the_kernels_address_only_a_file_is_written(host: Host) -> None:
    before = host.state()
    done = host.harp("setup", "--yes")
    assert done.stdout.splitlines()[-1] == "Set up HARP successfully"
    assert (host.conf / "ztcp0.conf").read_text().splitlines()[1:] == [
        "device = packet:eth0",
        "address = kernel",
    ]
    assert host.run_dir.stat().st_mode & 0o7777 == 0o1777
    assert host.state()["routes"] == before["routes"]
    host.harp("setup", "undo")
    assert host.state() == before


def test_again_changes_nothing(host: Host) -> None:
    host.harp("setup", "--yes")
    before = host.state()
    times = {path: path.stat().st_mtime_ns for path in host.conf.iterdir()}
    done = host.harp("setup")  # nothing to ask, either
    assert done.stdout.splitlines() == ["  nothing to change", "Set up HARP successfully"]
    assert host.state() == before
    assert {path: path.stat().st_mtime_ns for path in host.conf.iterdir()} == times


def test_it_asks(host: Host) -> None:
    before = host.state()
    done = host.harp("setup", code=1, input="n\n")
    assert "Apply this? [y/N]" in done.stdout
    assert host.state() == before
    host.harp("setup", input="y\n")
    assert (host.conf / "ztcp0.conf").is_file()


def test_plan_and_dry_run_change_nothing(host: Host) -> None:
    before = host.state()
    assert "write" in host.harp("setup", "plan").stdout
    assert "write" in host.harp("setup", "--dry-run").stdout
    rows = json.loads(host.harp("setup", "plan", "--json").stdout)["steps"]
    assert [row["kind"] for row in rows] == ["folder", "folder", "folder", "file"]
    assert host.state() == before


@pytest.mark.usefixtures("forwarding")
def test_an_own_address_on_a_host_that_forwards(host: Host) -> None:
    before = host.state()
    host.harp("setup", "apply", *OWN_ARGUMENTS, "--gateway", "10.77.0.1", "--set", "flows=2")
    assert blackholes(host) == f"blackhole {OWN}"
    assert (host.conf / "ztcp0.conf").read_text().splitlines()[1:] == [
        "device = packet:eth0",
        f"address = {OWN}/24",
        "gateway = 10.77.0.1",
        "flows = 2",
    ]
    assert "done     blackhole" in host.harp("setup", "status").stdout
    host.harp("setup", "undo")
    assert host.state() == before


def test_an_own_address_on_a_host_that_does_not_forward(host: Host) -> None:
    host.harp("setup", "apply", *OWN_ARGUMENTS)
    assert blackholes(host) == ""
    host.harp("setup", "undo")


@pytest.mark.usefixtures("forwarding")
def test_after_a_reboot_the_route_is_missing_and_setup_mends_it(host: Host) -> None:
    host.harp("setup", "apply", *OWN_ARGUMENTS)
    host.host.run(["ip", "route", "del", "blackhole", f"{OWN}/32"])
    assert "missing  blackhole" in host.harp("setup", "status", code=1).stdout
    host.harp("setup", "--yes")
    assert blackholes(host) == f"blackhole {OWN}"
    assert len(json.loads(host.harp("setup", "status", "--json").stdout)["steps"]) == 5
    host.harp("setup", "undo")
    assert blackholes(host) == ""


@pytest.mark.usefixtures("forwarding")
def test_a_route_that_was_there_is_not_ours_to_remove(host: Host) -> None:
    host.host.run(["ip", "route", "add", "blackhole", f"{OWN}/32"])
    host.harp("setup", "apply", *OWN_ARGUMENTS)
    host.harp("setup", "undo")
    assert blackholes(host) == f"blackhole {OWN}"


@pytest.mark.parametrize(
    "words, said",
    [
        (
            ("--device", "packet:eth9"),
            "no interface eth9 in this network namespace; usable ones: eth0",
        ),
        (("--device", "packet:lo"), "lo is no Ethernet interface"),
        (
            ("--device", "packet:eth0", "--address", "10.77.0.2/24"),
            "the kernel holds 10.77.0.2 itself",
        ),
        (("--device", "packet:eth0", "--address", "127.0.0.5/8"), "address = '127.0.0.5/8' is not"),
        (("--device", "packet:eth0", "--address", "10.77.0.102"), "with its prefix"),
        (("--device", "eth0"), "device = 'eth0' is not allowed"),
        (("--device", "wire:/x", "--address", "10.0.0.1/24"), "set-up knows packet:IFACE"),
        (("--device", "packet:eth0", "--set", "mtu=9"), "from 576 to 65535"),
        (("--device", "packet:eth0", "--device", "packet:eth0"), "named twice"),
        (("--device", "packet:eth0", "--set", "colour=blue"), "unknown key 'colour'"),
    ],
)
def test_refusals(words: tuple[str, ...], said: str, host: Host) -> None:
    before = host.state()
    assert said in host.harp("setup", "apply", *words, code=1).stderr
    assert host.state() == before


@pytest.mark.parametrize(
    "words",
    [
        ("setup", "apply", "--device", "packet:eth0", "--address", "kernel", "--address", "kernel"),
        ("setup", "apply", "--set", "flows"),
        ("setup", "apply", "--set", "device=packet:eth0"),
        ("setup", "--yes", "undo"),
        ("setup", "mend"),
        ("setup", "--colour"),
    ],
)
def test_wrong_usage(words: tuple[str, ...], host: Host) -> None:
    host.harp(*words, code=2)
    assert not host.conf.exists()


def test_several_usable_interfaces_must_be_chosen_from(host: Host) -> None:
    host.host.run(["ip", "link", "add", "eth1", "type", "veth", "peer", "name", "eth2"])
    try:
        host.host.run(["ip", "address", "add", "10.78.0.1/24", "dev", "eth1"])
        for name in ("eth1", "eth2"):
            host.host.run(["ip", "link", "set", name, "up"])
        text = host.harp("setup", "--yes", code=2).stderr
        assert "--device packet:eth0" in text and "--device packet:eth1" in text
        assert "eth2" not in text  # it has no address
        host.harp("setup", "apply", "--device", "packet:eth1", "--device", "packet:eth0")
        assert "packet:eth1" in (host.conf / "ztcp0.conf").read_text()
        assert "packet:eth0" in (host.conf / "ztcp1.conf").read_text()
        # Now they are chosen: alone, set-up looks after what is configured.
        assert "nothing to change" in host.harp("setup", "--yes").stdout
        host.host.run(["ip", "link", "set", "eth2", "down"])
        host.host.run(["ip", "link", "set", "eth1", "down"])
        assert "eth1 is down; ip link set eth1 up" in host.harp("setup", "--yes", code=1).stderr
    finally:
        host.host.run(["ip", "link", "del", "eth1"])


def test_a_file_by_hand_keeps_what_was_not_asked_about(host: Host) -> None:
    host.conf.mkdir(parents=True)
    by_hand = "# mine\ndevice=fault:drop=0.1|packet:eth0\naddress=kernel # shared\nflows = 4\n"
    (host.conf / "ztcp7.conf").write_text(by_hand)
    before = host.state()
    same = host.harp("setup", "plan", "--device", "fault:drop=0.1|packet:eth0", "--set", "flows=4")
    assert same.stdout == f"  make the folder {host.run_dir}\n"
    host.harp("setup", "apply", "--device", "packet:eth0", "--set", "flows=8", "--set", "mtu=1400")
    assert (host.conf / "ztcp7.conf").read_text() == (
        "# mine\ndevice = packet:eth0\naddress = kernel\nflows = 8\nmtu = 1400\n"
    )
    host.harp("setup", "undo")
    assert host.state() == before


def test_undo_keeps_later_edits_aside(host: Host) -> None:
    host.harp("setup", "--yes")
    path = host.conf / "ztcp0.conf"
    path.write_text(path.read_text() + "flows = 3\n")
    assert "kept what was edited by hand" in host.harp("setup", "undo").stdout
    assert not path.exists()
    assert "flows = 3" in (host.conf / "ztcp0.conf.edited").read_text()


def test_a_file_that_a_job_uses_is_not_touched(host: Host) -> None:
    host.harp("setup", "--yes")
    path = host.conf / "ztcp0.conf"
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert "claimed by a running job" in host.harp("setup", "undo", code=1).stderr
    assert (
        "claimed by a running job" in host.harp("setup", "apply", "--set", "flows=2", code=1).stderr
    )
    assert path.exists()
    os.close(fd)
    host.harp("setup", "undo")
    assert not host.tools.exists()


def test_one_at_a_time(host: Host) -> None:
    host.harp("setup", "--yes")
    fd = os.open(host.conf, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert "another harp setup" in host.harp("setup", "undo", code=1).stderr
    os.close(fd)


def test_a_wrong_file_stops_it(host: Host) -> None:
    host.conf.mkdir(parents=True)
    (host.conf / "ztcp0.conf").write_text("devise = packet:eth0\n")
    assert "ztcp0.conf:1: unknown key 'devise'" in host.harp("setup", "--yes", code=1).stderr


def test_a_damaged_journal_is_named(host: Host) -> None:
    host.harp("setup", "--yes")
    (host.conf / "setup-journal.json").write_text("{")
    assert "setup-journal.json is damaged" in host.harp("setup", "undo", code=1).stderr
    assert "setup-journal.json is damaged" in host.harp("setup", "status", code=1).stderr


def test_status_of_a_host_without(host: Host) -> None:
    assert "nothing set up" in host.harp("setup", "status", code=1).stdout
    assert "nothing to undo" in host.harp("setup", "undo").stdout


def crash_everywhere(host: Host, words: tuple[str, ...]) -> Iterator[int]:
    """Runs harp again and again, dying one change later each time, until it ends well."""
    for calls in range(60):
        done = host.script("crashing.py", str(calls), *words)
        assert done.returncode in (0, -signal.SIGKILL), done.stdout + done.stderr
        if done.returncode == 0:
            return
        yield calls
    raise AssertionError("it never ended")


@pytest.mark.usefixtures("forwarding")
def test_a_crash_anywhere_is_undone(host: Host) -> None:
    crashes = 0
    for _ in crash_everywhere(host, ("setup", "apply", *OWN_ARGUMENTS)):
        host.harp("setup", "undo")
        crashes += 1
        assert blackholes(host) == ""
        assert not list(host.tools.rglob("ztcp*"))
        assert not list(host.tools.rglob("*.json"))
        shutil.rmtree(host.tools, ignore_errors=True)  # empty folders may be left
    assert crashes > 10


@pytest.mark.usefixtures("forwarding")
def test_after_a_crash_anywhere_setup_goes_on(host: Host) -> None:
    before = host.state()
    for _ in crash_everywhere(host, ("setup", "apply", *OWN_ARGUMENTS)):
        pass  # each run goes on where the last one died
    host.harp("setup", "status")
    assert blackholes(host) == f"blackhole {OWN}"
    for _ in crash_everywhere(host, ("setup", "undo")):
        pass
    assert blackholes(host) == ""
    leftover = {path for path, _ in host.state()["files"].items() if not path.endswith("config")}
    assert leftover <= {str(host.run_dir)} and host.state()["routes"] == before["routes"]
