# SPDX-License-Identifier: Apache-2.0
"""harp setup binds a NIC of the guest to a user-space driver and back, with an IOMMU (vfio-pci) and
without one (uio_pci_generic)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import crash_at_each_step
import pytest
from dpdk_guest import PYTHON, state
from guest import COMMAND_S, DATA, MANAGEMENT, TEST_S, TWINS, Guest

from harp.setup.plan import CONF_DIR

SUCCESS = "Set up HARP successfully"
KILLED = Path(crash_at_each_step.__file__)
pytestmark = pytest.mark.timeout(TEST_S)


def driver(guest: Guest, pci_id: str) -> str:
    return Path(guest.check("readlink", f"/sys/bus/pci/devices/{pci_id}/driver").strip()).name


def reaches_peer(guest: Guest) -> bool:
    """Whether the kernel's network works over the second NIC."""
    return guest.run("busybox", "ping", "-c", "3", "-w", "20", "-I", DATA.name, DATA.peer).code == 0


def test_setup_and_undo_of_dpdk_nic(guest: Guest) -> None:
    before = state(guest)
    assert reaches_peer(guest)
    done = guest.run("harp-setup", "--yes", "--dpdk")
    assert done.code == 0 and done.out.splitlines()[-1] == SUCCESS, str(done)
    assert driver(guest, DATA.pci_id) == ("vfio-pci" if guest.iommu else "uio_pci_generic")
    assert guest.read(f"{CONF_DIR}/ztcp0.conf").splitlines()[1:] == [
        f"device = dpdk:{DATA.pci_id}",
        f"address = {DATA.address}/{DATA.prefix}",
        "mtu = 1500",
        f"pci_path = /sys/devices/pci0000:00/{DATA.pci_id}",
    ]
    assert int(guest.read("/proc/sys/vm/nr_hugepages")) == 128
    assert not reaches_peer(guest)
    assert ("this host has no IOMMU" in done.out) == (not guest.iommu)

    again = guest.run("harp-setup", "--yes")
    assert again.code == 0 and again.out.splitlines()[0] == "  nothing to change", str(again)
    said = guest.check("harp", "setup", "undo")
    assert f"gave {DATA.pci_id} back to virtio-pci: eth1, {DATA.address}" in said
    assert state(guest) == before
    assert reaches_peer(guest)


def test_default_route_nic_is_never_given_away(guest: Guest) -> None:
    before = state(guest)
    for device in (f"dpdk:{MANAGEMENT.pci_id}", "dpdk:eth0"):
        done = guest.run("harp-setup", "--yes", "--device", device, "--even-if-used")
        assert done.code == 1 and "it carries the default route" in done.err, str(done)
    assert state(guest) == before


def test_setup_killed_at_each_step_is_undone(guest: Guest) -> None:
    args = ["setup", "apply", "--device", f"dpdk:{DATA.pci_id}"]
    done = guest.run(sys.executable, KILLED, *args, env=PYTHON, timeout=2 * COMMAND_S)
    assert done.code == 0, str(done)
    counts = json.loads(done.out)
    # Changes: folders, modules, pages, writes to sysfs, and the journal.
    assert counts["killed"] > 15 and counts["undo_killed"] > 5


def test_iommu_group_of_two_must_be_given_together(guest: Guest) -> None:
    if not guest.iommu:
        pytest.skip("groups are an IOMMU's")
    before = state(guest)
    for nic in TWINS:
        guest.check("ip", "address", "add", f"{nic.address}/{nic.prefix}", "dev", nic.name)
    try:
        alone = guest.run("harp", "setup", "apply", "--device", "dpdk:eth2")
        assert alone.code == 1 and f"with {TWINS[1].pci_id}" in alone.err, str(alone)
        both = guest.run("harp", "setup", "apply", "--device", "dpdk:eth2", "--device", "dpdk:eth3")
        assert both.code == 0 and "share IOMMU group" in both.out, str(both)
        assert [driver(guest, nic.pci_id) for nic in TWINS] == ["vfio-pci"] * 2
        guest.check("harp", "setup", "undo")
    finally:
        for nic in TWINS:
            guest.run("ip", "address", "flush", "dev", nic.name)
    assert state(guest) == before
