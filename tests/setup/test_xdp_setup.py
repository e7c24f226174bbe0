# SPDX-License-Identifier: Apache-2.0
"""harp setup with xdp devices: it switches LRO off, limits queues and enlarges rings. Undo restores
all of them."""

from __future__ import annotations

import errno
import json
import struct
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from fake_host import FakeHost

from harp.setup import nic_settings, sysfs
from harp.setup.command import SUCCESS, setup
from harp.setup.journal import Journal
from harp.setup.nic_settings import NicSetting
from harp.setup.plan import conf_dir
from harp.setup.request import place_of
from harp.setup.steps import StepError

Host = Any  # conftest's SetUpHost

NIC = "wide0"
QUEUES = 70
DEVICE = ("--device", f"xdp:{NIC},mode=copy")


@pytest.fixture
def wide(host: Host) -> Iterator[Host]:
    """A host whose interface wide0 has more queues than HARP hears."""
    count = ["numtxqueues", QUEUES, "numrxqueues", QUEUES]
    host.host.run(["ip", "link", "add", NIC, *count, "type", "veth", "peer", "name", "wide1"])
    host.host.run(["ethtool", "-L", NIC, "rx", QUEUES])
    host.host.run(["ip", "address", "add", "10.79.0.1/24", "dev", NIC])
    for name in (NIC, "wide1"):
        host.host.run(["ip", "link", "set", name, "up"])
    yield host
    host.host.run(["ip", "link", "del", NIC])


def planned(host: Host, *args: str) -> list[str]:
    rows = json.loads(host.harp("setup", "plan", "--json", *args).stdout)["steps"]
    return [row["does"] for row in rows if row["kind"] == "nic"]


def queues(host: Host) -> int:
    lines = host.host.run(["ethtool", "-l", NIC]).stdout.splitlines()
    return int([line.split()[1] for line in lines if line.startswith("RX:")][1])


def test_queues_are_limited_and_restored(wide: Host) -> None:
    before = wide.state()
    assert planned(wide, *DEVICE) == [
        f"ethtool -L {NIC} rx 64 (an xdp device hears at most 64 queues)"
    ]
    assert "ethtool -L" in wide.harp("setup", "--dry-run", *DEVICE).stdout
    assert queues(wide) == QUEUES and wide.state() == before
    wide.harp("setup", "apply", *DEVICE)
    assert queues(wide) == 64
    assert (wide.conf / "ztcp0.conf").read_text().splitlines()[1:] == [
        f"device = xdp:{NIC},mode=copy",
        "address = kernel",
    ]
    assert f"done     nic {NIC} queues" in wide.harp("setup", "status").stdout
    assert "nothing to change" in wide.harp("setup", "--yes").stdout
    assert f"set {NIC} queues to {QUEUES} again" in wide.harp("setup", "undo").stdout
    assert queues(wide) == QUEUES and wide.state() == before


def test_undo_leaves_later_changes(wide: Host) -> None:
    wide.harp("setup", "apply", *DEVICE)
    wide.host.run(["ethtool", "-L", NIC, "rx", "3"])
    assert "queues" not in wide.harp("setup", "undo").stdout
    assert queues(wide) == 3


def test_packet_device_changes_no_setting_and_becomes_xdp(wide: Host) -> None:
    wide.harp("setup", "apply", "--device", f"packet:{NIC}")
    assert queues(wide) == QUEUES
    wide.harp("setup", "apply", "--device", f"xdp:{NIC}")
    assert [path.name for path in wide.conf.glob("ztcp*.conf")] == ["ztcp0.conf"]
    assert f"device = xdp:{NIC}\n" in (wide.conf / "ztcp0.conf").read_text()
    wide.harp("setup", "undo")


def test_settings_go_when_the_nic_becomes_a_packet_device(wide: Host) -> None:
    wide.harp("setup", "apply", *DEVICE)
    done = wide.harp("setup", "apply", "--device", f"packet:{NIC}").stdout
    assert f"set {NIC} queues to {QUEUES} again: no file needs that step any more" in done
    assert queues(wide) == QUEUES
    assert f"nic {NIC}" not in wide.harp("setup", "status").stdout
    wide.harp("setup", "undo")


def test_steps_of_an_earlier_choice_are_shown_and_asked_for(wide: Host) -> None:
    """The user edits the file, and set-up has nothing else to change."""
    wide.harp("setup", "apply", *DEVICE)
    file = wide.conf / "ztcp0.conf"
    file.write_text(file.read_text().replace(f"xdp:{NIC},mode=copy", f"packet:{NIC}"))
    shown = f"  undo nic {NIC} queues (no file needs it any more)"
    for args in (["plan"], ["--dry-run"]):
        said = wide.harp("setup", *args).stdout
        assert shown in said.splitlines() and "nothing to change" not in said
    document = json.loads(wide.harp("setup", "plan", "--json").stdout)
    assert document["steps"] == []
    assert [(row["kind"], row["target"]) for row in document["undo"]] == [("nic", f"{NIC} queues")]
    assert "Apply this?" in wide.harp("setup", input="n\n", code=1).stdout
    assert queues(wide) == 64
    wide.harp("setup", input="y\n")
    assert queues(wide) == QUEUES
    assert "nothing to change" in wide.harp("setup", "plan").stdout
    wide.harp("setup", "undo")


def test_plan_of_another_choice_shows_what_it_undoes(wide: Host) -> None:
    """The file is not written yet. A step that a later change has undone is not shown."""
    wide.harp("setup", "apply", *DEVICE)
    args = ("setup", "plan", "--device", f"packet:{NIC}")
    assert f"undo nic {NIC} queues" in wide.harp(*args).stdout
    assert "undo" not in wide.harp("setup", "plan", *DEVICE).stdout
    wide.host.run(["ethtool", "-L", NIC, "rx", "3"])
    assert "undo" not in wide.harp(*args).stdout
    wide.harp("setup", "undo")


def test_step_that_cannot_be_undone_is_a_note(
    fake: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(256, 4096)
    monkeypatch.setattr(nic_settings, "_ask", driver)
    (conf_dir() / "ztcp0.conf").write_text("device = packet:eth1\naddress = kernel\n")
    Journal(conf_dir()).carry_out(NicSetting("eth1", "rx-ring", 1024, 256, sysfs.boot()))
    driver.refuses = errno.EBUSY
    done = CliRunner().invoke(setup, ["--yes"])
    assert done.exit_code == 0 and SUCCESS in done.output
    said = "note: no file needs nic eth1 rx-ring any more, but it is not undone: ethtool -G eth1"
    assert said in done.output
    journal = Journal(conf_dir())
    assert journal.complete and [step.kind for step in journal.steps] == ["nic"]
    driver.refuses = 0
    assert CliRunner().invoke(setup, ["--yes"]).exit_code == 0
    assert driver.ring == 256 and not Journal(conf_dir()).steps


@pytest.mark.parametrize("first, second", [("xdp", "xdp"), ("xdp", "packet"), ("packet", "xdp")])
def test_one_file_serves_an_interface_with_xdp(host: Host, first: str, second: str) -> None:
    args = ["--device", f"{first}:eth0", "--address", "10.77.0.111/24"]
    args += ["--device", f"{second}:eth0", "--address", "10.77.0.112/24"]
    assert "is named twice" in host.harp("setup", "plan", *args, code=2).stderr


def test_xdp_devices_in_one_subnet_get_sysctls(wide: Host) -> None:
    wide.host.run(["ip", "address", "add", "10.79.0.2/24", "dev", "wide1"])
    for key in ("arp_ignore", "arp_announce"):
        wide.host.write(f"/proc/sys/net/ipv4/conf/{NIC}/{key}", "0")
    args = [*DEVICE, "--device", "packet:wide1"]
    said = wide.harp("setup", "plan", *args).stdout
    assert f"net.ipv4.conf.{NIC}.arp_ignore=1" in said


def test_options_are_no_part_of_the_interface() -> None:
    assert place_of("fault:drop=0.1|xdp:eth1,mode=copy") == place_of("xdp:eth1") == "eth1"


class Driver:
    """Answers ioctls about a ring and about offloads. `on`: the places of the offloads that are on,
    among 40. `refuses`: the errno of a change."""

    NAMES = {3: "rx-vlan-hw-parse", 34: "rx-lro", 39: "rx-gro-hw"}
    COUNT = 40
    fixed = False  # offloads behind the first 32

    def __init__(
        self, ring: int, most: int, refuses: int = 0, on: frozenset[int] = frozenset()
    ) -> None:
        self.ring, self.most, self.refuses, self.on = ring, most, refuses, on

    def __call__(self, interface: str, args: list[int]) -> list[int]:
        command = args[0]
        if command == 0x10:
            return [command, self.most, 0, 0, 4096, self.ring, 0, 0, 512]
        if command == 0x37:
            return [*args[:4], self.COUNT]
        if command == 0x1B:
            names = [self.NAMES.get(i, f"offload-{i}").encode() for i in range(self.COUNT)]
            text = b"".join(name.ljust(32, b"\0") for name in names)
            return args[:3] + list(struct.unpack(f"={len(text) // 4}I", text))
        if command == 0x3A:
            active = [sum(1 << (i - at) for i in self.on if at <= i < at + 32) for at in (0, 32)]
            return [command, 2, ~0, 0, active[0], 0, 0 if self.fixed else ~0, 0, active[1], 0]
        if self.refuses or command not in (0x11, 0x3B):
            raise OSError(self.refuses or errno.EOPNOTSUPP, "it does not")
        if command == 0x11:
            assert args[8] == 512, "the ring for sending stays"
            self.ring = args[5]
        else:
            for i in range(self.COUNT):
                valid, state = args[2 + i // 32 * 2 :][:2]
                if valid >> i % 32 & 1:
                    self.on = self.on - {i} | ({i} if state >> i % 32 & 1 else set())
        return args


@pytest.mark.parametrize("key, place", [("lro", 34), ("rx-gro-hw", 39)])
def test_merging_of_segments_is_switched_off_and_restored(
    monkeypatch: pytest.MonkeyPatch, key: str, place: int
) -> None:
    driver = Driver(1024, 1024, on=frozenset({3, place}))
    monkeypatch.setattr(nic_settings, "_ask", driver)
    with monkeypatch.context() as patched:
        patched.setattr(driver, "fixed", True)
        assert not nic_settings.steps("eth1")
    (step,) = nic_settings.steps("eth1")
    assert step.describe() == (
        f"ethtool -K eth1 {key} off (most drivers refuse XDP programs while the NIC merges "
        "segments)"
    )
    assert not step.in_place()
    step.do()
    assert driver.on == {3} and step.in_place() and not nic_settings.steps("eth1")
    assert step.undo() == f"set eth1 {key} to 1 again" and driver.on == {3, place}


def test_offloads_are_those_of_ethtool(host: Host) -> None:
    """A veth lets its VLAN offload change."""
    code = (
        "from harp.setup import nic_settings as n; print(n.value('eth0', 'rxvlan'), "
        "n.change('eth0', 'rxvlan', 0), n.value('eth0', 'rxvlan'), n.value('eth0', 'rx-gro-hw'))"
    )
    said = host.host.run([sys.executable, "-c", code]).stdout
    shown = host.host.run(["ethtool", "-k", "eth0"]).stdout
    host.host.run(["ethtool", "-K", "eth0", "rxvlan", "on"])
    assert said.split() == ["1", "None", "0", "0"]
    assert "rx-vlan-offload: off" in shown and "rx-gro-hw: off" in shown


@pytest.mark.parametrize(
    "now, most, wanted", [(256, 4096, 1024), (256, 512, 512), (2048, 4096, None), (512, 512, None)]
)
def test_small_rings_are_enlarged_and_restored(
    monkeypatch: pytest.MonkeyPatch, now: int, most: int, wanted: int | None
) -> None:
    driver = Driver(now, most)
    monkeypatch.setattr(nic_settings, "_ask", driver)
    steps = nic_settings.steps("eth1")
    assert len(steps) == (wanted is not None)
    for step in steps:
        assert f"ethtool -G eth1 rx {wanted} " in step.describe() and not step.in_place()
        step.do()
        assert driver.ring == wanted and step.in_place() and not nic_settings.steps("eth1")
        assert step.undo() == f"set eth1 rx-ring to {now} again" and driver.ring == now


def test_refusal_of_the_driver_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nic_settings, "_ask", Driver(256, 4096, errno.EBUSY))
    with pytest.raises(StepError, match="ethtool -G eth1 rx 1024: it does not; the driver refuses"):
        NicSetting("eth1", "rx-ring", 1024, 256, "").do()
