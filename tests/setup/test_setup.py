# SPDX-License-Identifier: Apache-2.0
"""harp setup on a host: it writes files and routes, repeats nothing, and undo restores the host
after any interruption."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

Host = Any  # conftest's SetUpHost

FULL = bool(os.environ.get("HARP_TEST_FULL"))
OWN, OTHER = "10.77.0.102", "10.77.0.104"
OWN_ARGUMENTS = ("--device", "packet:eth0", "--address", f"{OWN}/24")


@pytest.fixture
def forwarding(host: Host) -> Iterator[None]:
    host.host.write("/proc/sys/net/ipv4/ip_forward", "1")
    yield
    host.host.write("/proc/sys/net/ipv4/ip_forward", "0")
    host.host.run(["ip", "route", "del", "blackhole", f"{OWN}/32"], check=False)


def blackholes(host: Host) -> str:
    return str(host.host.run(["ip", "route", "show", "type", "blackhole"]).stdout).strip()


def test_kernel_address_writes_only_a_file(host: Host) -> None:
    before = host.state()
    done = host.harp("setup", "--yes")
    assert done.stdout.splitlines()[-1] == "Set up HARP successfully"
    assert (host.conf / "ztcp0.conf").read_text().splitlines()[1:] == [
        "device = packet:eth0",
        "address = kernel",
    ]
    assert host.run_dir.stat().st_mode & 0o7777 == 0o1777
    assert host.state()["routes"] == before["routes"]
    host.harp("setup", "undo", "--yes")
    assert host.state() == before


def test_status_fails_while_setup_is_at_work(host: Host) -> None:
    """All steps of the journal are done between two of them."""
    host.harp("setup", "--yes")
    path = host.conf / "setup-journal.json"
    journal = json.loads(path.read_text())
    assert journal["complete"] is True
    assert json.loads(host.harp("setup", "status", "--json").stdout)["complete"] is True
    path.write_text(json.dumps({**journal, "complete": False}))
    said = host.harp("setup", "status", code=1).stdout
    assert "missing" not in said and "a set-up or an undo is running or was interrupted" in said
    assert json.loads(host.harp("setup", "status", "--json", code=1).stdout)["complete"] is False
    host.harp("setup", "--yes")
    host.harp("setup", "status")
    del journal["complete"]  # as older releases write it
    path.write_text(json.dumps(journal))
    host.harp("setup", "status")


def test_second_setup_changes_nothing(host: Host) -> None:
    host.harp("setup", "--yes")
    before = host.state()
    times = {path: path.stat().st_mtime_ns for path in host.conf.iterdir()}
    done = host.harp("setup")  # without changes, it does not ask
    assert done.stdout.splitlines() == ["  nothing to change", "Set up HARP successfully"]
    assert host.state() == before
    assert {path: path.stat().st_mtime_ns for path in host.conf.iterdir()} == times


def test_setup_asks_before_applying(host: Host) -> None:
    before = host.state()
    done = host.harp("setup", code=1, input="n\n")
    assert "Apply this? [y/N]" in done.stdout
    assert host.state() == before
    assert "no answer; --yes applies this" in host.harp("setup", code=1, input="").stderr
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
def test_own_address_on_forwarding_host_adds_blackhole(host: Host) -> None:
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


def test_own_address_without_forwarding_adds_no_route(host: Host) -> None:
    host.harp("setup", "apply", *OWN_ARGUMENTS)
    assert blackholes(host) == ""
    host.harp("setup", "undo")


@pytest.mark.usefixtures("forwarding")
def test_setup_restores_missing_route(host: Host) -> None:
    host.harp("setup", "apply", *OWN_ARGUMENTS)
    host.host.run(["ip", "route", "del", "blackhole", f"{OWN}/32"])
    assert "missing  blackhole" in host.harp("setup", "status", code=1).stdout
    host.harp("setup", "--yes")
    assert blackholes(host) == f"blackhole {OWN}"
    assert len(json.loads(host.harp("setup", "status", "--json").stdout)["steps"]) == 5
    host.harp("setup", "undo")
    assert blackholes(host) == ""


@pytest.mark.usefixtures("forwarding")
def test_route_of_an_earlier_address_is_removed(host: Host) -> None:
    """Also from the journal: restore does not make it again, and status would miss it for ever."""
    before = host.state()
    host.harp("setup", "apply", *OWN_ARGUMENTS)
    other = ("--device", "packet:eth0", "--address", f"{OTHER}/24")
    assert f"removed the blackhole route for {OWN}: " in host.harp("setup", "apply", *other).stdout
    assert blackholes(host) == f"blackhole {OTHER}"
    host.host.run(["ip", "route", "del", "blackhole", f"{OTHER}/32"])  # as a reboot does
    host.harp("setup", "status", code=1)
    host.harp("setup", "restore")
    assert blackholes(host) == f"blackhole {OTHER}"
    host.harp("setup", "status")
    done = host.harp("setup", "apply", *OWN_ARGUMENTS, "--json").stdout
    assert json.loads(done)["undone"] == [f"removed the blackhole route for {OTHER}"]
    host.harp("setup", "undo")
    assert host.state() == before


@pytest.mark.usefixtures("forwarding")
def test_undo_keeps_existing_route(host: Host) -> None:
    host.host.run(["ip", "route", "add", "blackhole", f"{OWN}/32"])
    host.harp("setup", "apply", *OWN_ARGUMENTS)
    host.harp("setup", "undo")
    assert blackholes(host) == f"blackhole {OWN}"


@pytest.mark.parametrize(
    "args, said",
    [
        (
            ("--device", "packet:eth9"),
            "no interface eth9 in this network namespace; usable interfaces: eth0",
        ),
        (("--device", "packet:lo"), "lo is not an Ethernet interface"),
        (
            ("--device", "packet:eth0", "--address", "10.77.0.2/24"),
            "10.77.0.2 is one of the kernel's addresses",
        ),
        (("--device", "dpdk:nosuch"), "there is no NIC nosuch; this host's NICs:"),
        (
            ("--device", "dpdk:nosuch", "--address", "10.77.0.102/24"),
            "there is no NIC nosuch; this host's NICs:",
        ),
        (("--device", "dpdk:virtio_user0,path=/x"), "give it one with --address ADDRESS/PREFIX"),
    ],
)
def test_invalid_requests_are_refused(args: tuple[str, ...], said: str, host: Host) -> None:
    before = host.state()
    assert said in host.harp("setup", "apply", *args, code=1).stderr
    assert host.state() == before


@pytest.mark.parametrize(
    "args, said",
    [
        (("packet:eth0", "--address", "127.0.0.5/8"), "address = '127.0.0.5/8' is not"),
        (("packet:eth0", "--address", "10.77.0.102"), "with its prefix"),
        (("eth0",), "Error: device = 'eth0' is not allowed; expected packet:IFACE"),
        (("wire:/x", "--address", "10.0.0.1/24"), "set-up handles packet:IFACE"),
        (("packet:eth0", "--set", "mtu=9"), "Error: mtu = '9' is not allowed; expected a whole"),
        (("packet:eth0", "--set", "colour=blue"), "unknown key 'colour'"),
        (("packet:eth0", "--set", "colour="), "unknown key 'colour'; harp env"),
        (("packet:eth0", "--set", "flow=1"), "unknown key 'flow' (do you mean flows?); harp env"),
        (("packet:eth0", "--device", "packet:eth0"), "named twice"),
        (
            ("dpdk:virtio_user0", "--address", "kernel"),
            "address = kernel needs a packet or xdp device",
        ),
        (
            ("packet:eth0", "--address", "10.77.0.102/24", "--gateway", "10.78.0.1"),
            "Error: gateway = 10.78.0.1 is outside the address's network (/24)",
        ),
        (("packet:eth0", "--dpdk"), "--dpdk takes all free NICs"),
    ],
)
def test_invalid_values_exit_2(args: tuple[str, ...], said: str, host: Host) -> None:
    before = host.state()
    error = host.harp("setup", "apply", "--device", *args, code=2).stderr
    assert said in error and "plan:1" not in error
    assert host.state() == before


@pytest.mark.parametrize(
    "args",
    [
        ("setup", "apply", "--device", "packet:eth0", "--address", "kernel", "--address", "kernel"),
        ("setup", "apply", "--set", "flows"),
        ("setup", "apply", "--set", "device=packet:eth0"),
        ("setup", "--yes", "undo"),
        ("setup", "mend"),
        ("setup", "--colour"),
    ],
)
def test_wrong_usage_exits_2(args: tuple[str, ...], host: Host) -> None:
    host.harp(*args, code=2)
    assert not host.conf.exists()


def lines(host: Host, number: int) -> list[str]:
    return list((host.conf / f"ztcp{number}.conf").read_text().splitlines()[1:])


def test_key_can_be_removed(host: Host) -> None:
    host.harp("setup", "apply", *OWN_ARGUMENTS, "--gateway", "10.77.0.1", "--set", "mtu=1400")
    device = ["device = packet:eth0", f"address = {OWN}/24"]
    assert lines(host, 0) == [*device, "gateway = 10.77.0.1", "mtu = 1400"]
    host.harp("setup", "apply", "--gateway", "none")
    assert lines(host, 0) == [*device, "mtu = 1400"]
    host.harp("setup", "apply", "--set", "mtu=")
    assert lines(host, 0) == device
    host.harp("setup", "undo")


def test_key_that_contradicts_file_is_refused(host: Host) -> None:
    host.harp("setup", "apply", *OWN_ARGUMENTS, "--gateway", "10.77.0.1")
    error = host.harp("setup", "apply", "--address", "10.78.0.9/24", code=1).stderr
    assert "ztcp0.conf: gateway = 10.77.0.1 is outside the address's network" in error
    host.harp("setup", "undo")


@pytest.mark.slow
def test_one_nic_may_have_several_files(host: Host) -> None:
    """A file with an address of its own serves only one process."""
    before = host.state()

    def asked(*numbers: int) -> list[str]:
        return [
            word
            for number in numbers
            for word in ("--device", "packet:eth0", "--address", f"10.77.0.{number}/24")
        ]

    host.harp("setup", "apply", *asked(102, 103))
    assert lines(host, 0) == ["device = packet:eth0", "address = 10.77.0.102/24"]
    assert lines(host, 1) == ["device = packet:eth0", "address = 10.77.0.103/24"]
    for args in ((), asked(103, 102), asked(103)):  # a repetition in any order changes nothing
        assert "nothing to change" in host.harp("setup", "--yes", *args).stdout
    host.harp("setup", "apply", *asked(103), "--set", "mtu=1400")
    host.harp("setup", "apply", *asked(104))
    assert [lines(host, i)[1] for i in range(3)] == [
        f"address = 10.77.0.{number}/24" for number in (102, 103, 104)
    ]
    assert lines(host, 1)[2:] == ["mtu = 1400"] and lines(host, 0)[2:] == []
    host.harp("setup", "apply", "--set", "flows=2")  # changes all files
    assert [lines(host, i)[-1] for i in range(3)] == ["flows = 2"] * 3
    error = host.harp("setup", "apply", "--device", "packet:eth0", code=2).stderr
    assert "3 files configure eth0: ztcp0.conf (10.77.0.102/24), ztcp1.conf" in error
    assert "choose one with --address" in error
    assert "given twice" in host.harp("setup", "apply", *asked(102, 102), code=2).stderr
    mixed = ["--device", "packet:eth0", "--address", "kernel"]
    assert "named twice" in host.harp("setup", "apply", *mixed, *asked(102), code=2).stderr
    host.harp("setup", "undo")
    assert host.state() == before


@pytest.fixture
def second_nic(host: Host) -> Iterator[None]:
    host.host.run(["ip", "link", "add", "eth1", "type", "veth", "peer", "name", "eth2"])
    host.host.run(["ip", "address", "add", "10.78.0.1/24", "dev", "eth1"])
    for name in ("eth1", "eth2"):
        host.host.run(["ip", "link", "set", name, "up"])
    yield
    host.host.run(["ip", "link", "del", "eth1"])


@pytest.mark.usefixtures("second_nic")
def test_several_usable_interfaces_need_a_choice(host: Host) -> None:
    text = host.harp("setup", "--yes", code=2).stderr
    assert "--device packet:eth0" in text and "--device packet:eth1" in text
    assert "eth2" not in text  # eth2 has no address
    host.harp("setup", "apply", "--device", "packet:eth1", "--device", "packet:eth0")
    assert "packet:eth1" in (host.conf / "ztcp0.conf").read_text()
    assert "packet:eth0" in (host.conf / "ztcp1.conf").read_text()
    # The devices are configured now, so set-up without a device handles these.
    assert "nothing to change" in host.harp("setup", "--yes").stdout
    host.host.run(["ip", "link", "set", "eth2", "down"])
    host.host.run(["ip", "link", "set", "eth1", "down"])
    assert "eth1 is down; ip link set eth1 up" in host.harp("setup", "--yes", code=1).stderr


@pytest.mark.usefixtures("second_nic")
def test_socket_ifname_or_default_route_selects_interface(host: Host) -> None:
    """NCCL_SOCKET_IFNAME selects the interface, else the default route does."""
    for chosen, expected in (("eth1", ["eth1"]), ("=eth0", ["eth0"]), ("^eth1", ["eth0"]),
                             ("eth", ["eth0", "eth1"])):  # fmt: skip
        host.environment["NCCL_SOCKET_IFNAME"] = chosen
        planned = host.harp("setup", "plan").stdout
        assert re.findall("packet:(eth.), address = kernel", planned) == expected
    del host.environment["NCCL_SOCKET_IFNAME"]
    host.host.run(["ip", "route", "add", "default", "via", "10.78.0.2"])
    done = host.harp("setup", "plan")
    assert re.findall("packet:(eth.), address = kernel", done.stdout) == ["eth1"]
    assert "note: HARP could also use eth0" in done.stderr


def test_files_of_other_devices_are_kept(host: Host) -> None:
    host.conf.mkdir(parents=True)
    (host.conf / "ztcp0.conf").write_text("device = wire:/x\naddress = 10.0.0.1/24\n")
    host.harp("setup", "--yes")
    assert "device = packet:eth0" in lines(host, 1)
    assert "nothing to change" in host.harp("setup", "--yes").stdout
    host.harp("setup", "undo")
    assert (host.conf / "ztcp0.conf").read_text().startswith("device = wire:/x\n")


def test_no_nic_is_given_away_by_default(host: Host) -> None:
    assert "packet:eth0" in host.harp("setup", "plan").stdout
    assert "no NIC is free; harp setup nics" in host.harp("setup", "plan", "--dpdk", code=1).stderr


def test_edited_file_keeps_other_keys(host: Host) -> None:
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


def test_undo_keeps_edited_file_aside(host: Host) -> None:
    host.harp("setup", "--yes")
    path = host.conf / "ztcp0.conf"
    path.write_text(path.read_text() + "flows = 3\n")
    status = host.harp("setup", "status").stdout
    assert f"edited   file {path}\n" in status and "missing" not in status
    again = host.harp("setup", "--yes").stdout
    for said in (status, again):
        assert f"{path} was edited by hand; set-up leaves it (undo keeps it as " in said
        assert "To get set-up's text back: harp setup undo, then harp setup" in said
    assert "nothing to change" in again and "flows = 3" in path.read_text()
    text = path.read_text()
    path.write_text("flows = many\n")
    assert "expected a whole number" in host.harp("setup", "status", code=1).stderr
    path.unlink()
    assert f"missing  file {path}" in host.harp("setup", "status", code=1).stdout
    path.write_text(text)
    assert "kept the file edited by hand" in host.harp("setup", "undo").stdout
    assert not path.exists()
    assert "flows = 3" in (host.conf / "ztcp0.conf.edited").read_text()


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_files_of_any_bytes_are_kept(locale: str, host: Host) -> None:
    """A comment may be in Latin-1, and lines may end as on Windows."""
    host.environment |= {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    host.environment["PYTHONIOENCODING"] = "utf-8"
    host.conf.mkdir(parents=True)
    path = host.conf / "ztcp0.conf"
    mine = b"# f\xfcr\r\ndevice = packet:eth0\nmtu = 1400 # \xfc\x1b\n"
    path.write_bytes(mine)
    said = host.harp("setup", "--yes", "--set", "flows=2").stdout
    assert "mtu = 1400 # \ufffd\\x1b, address = kernel, flows = 2" in said
    edited = path.read_bytes() + b"# Stra\xdfe\n"
    assert edited.startswith(b"# f\xfcr\n")
    path.write_bytes(edited)
    host.harp("setup", "--yes", "--set", "flows=4")
    edited = path.read_bytes() + b"# \xff\n"
    path.write_bytes(edited)
    assert f"edited   file {path}\n" in host.harp("setup", "status").stdout
    host.harp("setup", "undo")
    assert path.read_bytes() == mine
    assert (host.conf / "ztcp0.conf.edited").read_bytes() == edited


def test_claimed_file_is_not_changed(host: Host) -> None:
    host.harp("setup", "--yes")
    path = host.conf / "ztcp0.conf"
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert "a running job uses" in host.harp("setup", "undo", code=1).stderr
    host.harp("setup", "status")
    assert "a running job uses" in host.harp("setup", "apply", "--set", "flows=2", code=1).stderr
    assert "begun" not in host.harp("setup", "status").stdout
    assert path.exists()
    os.close(fd)
    host.harp("setup", "undo")
    assert not host.tools.exists()


def test_concurrent_setup_is_refused(host: Host) -> None:
    host.harp("setup", "--yes")
    fd = os.open(host.conf, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with host.crashing() as run:  # which does not wait for long
        status, said = run(-1, "setup", "undo")
    assert status == 1 and "another harp setup" in said
    os.close(fd)


def test_invalid_file_stops_setup(host: Host) -> None:
    host.conf.mkdir(parents=True)
    (host.conf / "ztcp0.conf").write_text("devise = packet:eth0\n")
    assert "ztcp0.conf:1: unknown key 'devise'" in host.harp("setup", "--yes", code=1).stderr


def test_a_damaged_journal_is_named(host: Host) -> None:
    host.harp("setup", "--yes")
    (host.conf / "setup-journal.json").write_text("{")
    assert "setup-journal.json is damaged" in host.harp("setup", "undo", code=1).stderr
    assert "setup-journal.json is damaged" in host.harp("setup", "status", code=1).stderr


def test_status_and_undo_without_setup(host: Host) -> None:
    assert "nothing set up" in host.harp("setup", "status", code=1).stdout
    assert "nothing to undo" in host.harp("setup", "undo").stdout


Run = Callable[..., tuple[int, str]]  # of SetUpHost.crashing


def crash_everywhere(host: Host, run: Run, args: tuple[str, ...]) -> Iterator[int]:
    """Runs harp repeatedly until it succeeds, with a crash one change later each time. Status fails
    after each crash, unless nothing has changed since it succeeded."""

    def in_force() -> dict[str, Any]:
        state = host.state()
        files = {path: text for path, text in state["files"].items() if not path.endswith(".new")}
        return {**state, "files": files}

    complete = in_force() if run(-1, "setup", "status")[0] == 0 else None
    for calls in range(60):
        status, said = run(calls, *args)
        assert status in (0, -signal.SIGKILL), said
        if status == 0:
            return
        status, said = run(-1, "setup", "status")
        assert status == 1 or (status == 0 and in_force() == complete), said
        yield calls
    raise AssertionError("harp did not succeed within 60 runs")


@pytest.mark.slow
@pytest.mark.usefixtures("forwarding")
@pytest.mark.parametrize("there", ["", "tools", "tools/config"] if FULL else [""])
def test_crash_at_any_step_is_undone(there: str, host: Host) -> None:
    """Also if some of the folders existed before."""
    (host.tools.parent / there).mkdir(parents=True, exist_ok=True)
    crashes = 0
    before = host.state()
    with host.crashing() as run:
        for _ in crash_everywhere(host, run, ("setup", "apply", *OWN_ARGUMENTS)):
            status, said = run(-1, "setup", "undo")
            assert status == 0, said
            crashes += 1
            assert blackholes(host) == ""
            assert host.state() == before
    assert crashes >= 10
    host.harp("setup", "undo")


@pytest.mark.usefixtures("forwarding")
def test_setup_resumes_after_crash_at_any_step(host: Host) -> None:
    before = host.state()
    with host.crashing() as run:
        for _ in crash_everywhere(host, run, ("setup", "apply", *OWN_ARGUMENTS)):
            pass  # each run continues after the crash of the last one
        host.harp("setup", "status")
        assert blackholes(host) == f"blackhole {OWN}"
        assert host.run_dir.stat().st_mode & 0o7777 == 0o1777
        for _ in crash_everywhere(host, run, ("setup", "undo")):
            pass
    assert host.state() == before


def test_folders_in_use_are_kept(host: Host) -> None:
    host.harp("setup", "--yes")
    (host.tools / "notes").write_text("mine")
    done = host.harp("setup", "undo").stdout
    assert f"left the folder {host.tools}: it is not empty" in done
    assert f"removed the folder {host.conf}" in done
    assert [path.name for path in host.tools.iterdir()] == ["notes"]


def test_concurrent_first_setup_is_refused(host: Host) -> None:
    fd = os.open(host.tools.parent, os.O_RDONLY)  # the parent of the first folder that set-up makes
    fcntl.flock(fd, fcntl.LOCK_EX)
    with host.crashing() as run:
        status, said = run(-1, "setup", "--yes")
    assert status == 1 and "another harp setup" in said
    os.close(fd)
    assert not host.tools.exists()


SETUPS = 8


@pytest.mark.slow
@pytest.mark.usefixtures("forwarding")
def test_setups_at_once_wait_for_each_other(host: Host) -> None:
    """As the prologs of several jobs on a node do: on a new host, and on one that is set up."""
    before = host.state()
    for _ in range(2):
        running = [host.start("setup", "apply", *OWN_ARGUMENTS) for _ in range(SETUPS)]
        said = [process.communicate(timeout=120)[0] for process in running]
        assert [process.returncode for process in running] == [0] * SETUPS, said
        rows = json.loads(host.harp("setup", "status", "--json").stdout)["steps"]
        assert [row["kind"] for row in rows] == ["folder"] * 3 + ["blackhole", "file"]
    host.harp("setup", "undo")
    assert host.state() == before


def test_undo_waits_for_a_first_setup_beside_it(host: Host) -> None:
    """That one sweeps the place of the folder that undo takes away."""
    before = host.state()
    host.harp("setup", "--yes")
    fd = os.open(host.tools.parent, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with host.crashing() as run:
        status, said = run(-1, "setup", "undo")
    assert status == 1 and "another harp setup" in said
    assert host.conf.is_dir()
    os.close(fd)
    host.harp("setup", "undo")
    assert host.state() == before
