# SPDX-License-Identifier: Apache-2.0
"""`harp setup restore`, which runs at boot: it makes again what was set up, and nothing else."""

from __future__ import annotations

from typing import Any, Optional

import pytest
from fake_host import ID, POOL, FakeHost

from harp.setup import pages, restore
from harp.setup.bind import Bind
from harp.setup.plan import conf_dir, plan
from harp.setup.request import PlanError
from harp.setup.steps import Step

OWN = "10.77.0.103"
OWN_ARGUMENTS = ("--device", "packet:eth0", "--address", f"{OWN}/24")


def blackholes(host: Any) -> str:
    return str(host.host.run(["ip", "route", "show", "type", "blackhole"]).stdout.strip())


def test_lost_route_is_restored(host: Any) -> None:
    host.host.write("/proc/sys/net/ipv4/ip_forward", "1")
    host.harp("setup", "apply", *OWN_ARGUMENTS)
    host.host.run(["ip", "route", "del", "blackhole", f"{OWN}/32"])
    before = host.state()["files"]
    assert f"blackhole {OWN}/32" in host.harp("setup", "restore").stdout
    assert blackholes(host) == f"blackhole {OWN}"
    assert "nothing to change" in host.harp("setup", "restore").stdout
    assert host.state()["files"] == before
    host.harp("setup", "undo")
    assert blackholes(host) == ""


def test_restore_without_setup_changes_nothing(host: Any) -> None:
    before = host.state()
    assert host.harp("setup", "restore").stdout == "  nothing to change\n"
    assert host.state() == before


# -- NICs that HARP has alone


def bind(earlier: str = "ena") -> Bind:
    """As an earlier boot left it in the journal. `earlier` is the NIC's own driver."""
    settings = {"name": "eth1", "mtu": 1500, "mac": "", "up": True, "routes": [],
                "addresses": ["10.0.3.7/24 brd 10.0.3.255 scope global"]}  # fmt: skip
    return Bind(ID, "uio_pci_generic", earlier, "", settings, "an earlier boot")


def write_conf(device: str = f"dpdk:{ID}") -> None:
    (conf_dir() / "ztcp0.conf").write_text(f"device = {device}\naddress = 10.0.3.7/24\n")


def restored(monkeypatch: pytest.MonkeyPatch, *steps: Step) -> list[Step]:
    """The steps that restore would make with this journal."""

    class Remembered:
        def __init__(self, folder: Optional[Any]) -> None:
            self.steps = list(steps)

    monkeypatch.setattr(restore, "Journal", Remembered)
    requests, choice = restore.recorded()
    return plan(requests, choice, list(steps)) if requests else []


def test_nic_is_taken_again_with_its_driver_and_pages(
    fake: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_conf()
    reserved = pages.Pages(POOL, 300, 0, 40, "an earlier boot")
    made = restored(monkeypatch, bind(), reserved)
    assert [step.driver for step in made if isinstance(step, Bind)] == ["uio_pci_generic"]
    assert [step.count for step in made if isinstance(step, pages.Pages)] == [260]


@pytest.mark.parametrize("ipv4", [True, False])
def test_nic_with_an_ipv6_default_route_is_taken_again(
    ipv4: bool, fake: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router advertisement came since the boot, perhaps before DHCP's answer on another NIC."""
    write_conf()
    if not ipv4:
        fake.default_routes.clear()
    fake.default_routes.append("default via fe80::1 dev eth1 proto ra metric 1024 pref medium")
    assert [step.target for step in restored(monkeypatch, bind()) if isinstance(step, Bind)] == [ID]


def test_nic_without_pages_gets_none(fake: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    write_conf()
    assert "pages" not in {step.kind for step in restored(monkeypatch, bind())}


def test_nic_that_setup_did_not_take_stays(fake: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the administrator's alone takes no NIC from the kernel at boot."""
    write_conf()
    assert restored(monkeypatch) == []
    other = Bind("0000:00:09.0", "vfio-pci", "ena", "", None, "an earlier boot")
    assert restored(monkeypatch, other) == []


def test_other_nic_at_same_place_stays(fake: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    write_conf()
    with pytest.raises(PlanError, match="is now a device of the driver ena, but .* of virtio-pci"):
        restored(monkeypatch, bind(earlier="virtio-pci"))
