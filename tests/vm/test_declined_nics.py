# SPDX-License-Identifier: Apache-2.0
"""HARP declines an unusable NIC: init fails, one line names fault and remedy, and NCCL continues
without HARP."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from guest import DATA, MANAGEMENT, MTU, TEST_S, TWINS, Guest, build_dir

pytestmark = pytest.mark.timeout(TEST_S)

FOLDER = "/tmp/refusals"
SYSFS = "/sys/bus/pci/devices"
POOL = "/proc/sys/vm/nr_hugepages"
PERF = (
    f"{build_dir()}/harp/bench/harp-perf", "sendrecv", "--timeout", "2",
    "--plugin", f"{build_dir()}/plugin/libnccl-net.so",
    "--rank", "0", "--nranks", "2", "--rendezvous", "127.0.0.1:9",
)  # fmt: skip
ENVIRONMENT = {"HARP_CONF_DIR": FOLDER, "HARP_RUN_DIR": FOLDER, "NCCL_DEBUG": "WARN"}
# Allows reading folders of other users: a checkout is often in one.
ENTERS = "-all,+dac_read_search"
NOBODY = (
    "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
    f"--inh-caps={ENTERS}", f"--ambient-caps={ENTERS}",
)  # fmt: skip
# May lock only 8 MiB, although it is root.
NOTHING_LOCKED = (
    "prlimit", "--memlock=8388608", "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock",
)  # fmt: skip


def start(guest: Guest, device: str, *prefix: str, more: str = "") -> str:
    """Starts a rank with the device. Returns all its output."""
    text = f"device = dpdk:{device}\naddress = {DATA.address}/24\n{more}"
    guest.write(f"{FOLDER}/ztcp0.conf", text)
    done = guest.run(*prefix, *PERF, env=ENVIRONMENT)
    assert done.code == 1, str(done)
    return done.err


def refusal(guest: Guest, device: str, *prefix: str, more: str = "") -> str:
    """The one line with which HARP declines."""
    said = start(guest, device, *prefix, more=more)
    (line,) = [line for line in said.splitlines() if "NCCL WARN" in line]
    assert f"HARP: dpdk:{device}: " in line and "; NCCL goes on without HARP" in line, line
    assert re.search(r"declines: init: nccl\w+, 0 devices; NCCL would go on to its next", said)
    return line


def test_valid_configuration_is_accepted(given: Guest) -> None:
    """The reference: each other test changes one thing."""
    said = start(given, DATA.pci_id)
    assert "NCCL WARN" not in said and "rank 1 of 2 did not connect" in said


def test_nic_bound_to_kernel_driver_declines(given: Guest) -> None:
    line = refusal(given, MANAGEMENT.pci_id)
    assert "bound to the kernel's driver virtio-pci; bind it to vfio-pci (harp setup" in line


def test_missing_pci_device_declines(given: Guest) -> None:
    assert "there is no such PCI device; see lspci -D" in refusal(given, "0000:00:1e.0")


def test_mtu_beyond_device_maximum_declines(given: Guest) -> None:
    line = refusal(given, DATA.pci_id, more="mtu = 9000\n")
    assert f"mtu = 9000 is beyond the device's {MTU}: lower mtu" in line


def test_too_many_hugepages_requested_declines(given: Guest) -> None:
    line = refusal(given, DATA.pci_id, more="hugepages = 512\n")
    assert "hugepages = 512 asks for more than the 256 MiB that are free" in line
    assert "set some aside (sysctl vm.nr_hugepages), lower the number, or leave it out" in line


def test_nic_used_by_other_process_declines(given: Guest) -> None:
    """vfio detects the other process; without vfio, HARP's processes detect each other."""
    if given.iommu:
        group = given.check("readlink", f"{SYSFS}/{DATA.pci_id}/iommu_group").strip()
        hold = f"exec 9<>/dev/vfio/{Path(group).name}"
    else:
        hold = f"exec 9<{SYSFS}/{DATA.pci_id}/config; flock 9"
    # The shell holds the descriptor during the rank's try; the rank does not inherit it.
    line = refusal(given, DATA.pci_id, "sh", "-c", f'{hold}; "$@" 9>&-; exit $?', "sh")
    assert re.search(r"another process (with HARP )?uses the device.*; end it, or give this", line)


def test_nic_without_access_permission_declines(given: Guest) -> None:
    line = refusal(given, DATA.pci_id, *NOBODY)
    if given.iommu:
        assert "/dev/vfio/" in line and "Permission denied; give this user access to it" in line
    else:
        assert "only root can use a device bound to" in line
        assert "; bind it to vfio-pci, or run as root" in line


@contextmanager
def pages(guest: Guest, count: int) -> Iterator[None]:
    before = guest.read(POOL).strip()
    guest.check("sh", "-c", f"echo {count} >{POOL}")
    try:
        yield
    finally:
        guest.check("sh", "-c", f"echo {before} >{POOL}")


def test_missing_hugepages_without_iommu_declines(given: Guest) -> None:
    if given.iommu:
        pytest.skip("behind an IOMMU ordinary pages will do")
    with pages(given, 0):
        line = refusal(given, DATA.pci_id)
    assert "without an IOMMU the device needs hugepages, 80 MiB, and 0 are free" in line


def test_memlock_limit_below_mapping_size_declines(given: Guest) -> None:
    if not given.iommu:
        pytest.skip("only an IOMMU's mappings count")
    line = refusal(given, DATA.pci_id, *NOTHING_LOCKED)
    assert "HARP must map 80 MiB for the device, but this process may lock only 8" in line
    assert "give it CAP_IPC_LOCK, or raise the limit (ulimit -l unlimited" in line


def hand_over(guest: Guest, pci_id: str, driver: str) -> None:
    folder = f"{SYSFS}/{pci_id}"
    order = 'echo "$2" >$1/driver_override; echo $3 >$1/driver/unbind; echo $3 >$4'
    probe = "/sys/bus/pci/drivers_probe"
    guest.check("sh", "-c", order, "sh", folder, driver, pci_id, probe)


def test_iommu_group_shared_with_kernel_driver_declines(given: Guest) -> None:
    if not given.iommu:
        pytest.skip("groups are an IOMMU's")
    one, other = TWINS
    hand_over(given, one.pci_id, "vfio-pci")
    try:
        line = refusal(given, one.pci_id)
    finally:
        hand_over(given, one.pci_id, "")
        # It returns with the first free name: that of the NIC bound to HARP's driver.
        rename = 'ip link set dev "$(ls /sys/bus/pci/devices/$1/virtio*/net)" name $2'
        given.check("sh", "-c", rename, "sh", one.pci_id, one.name)
    assert f"with {other.pci_id}, which is bound to virtio-pci" in line
    assert "name that device to harp setup as well" in line


def test_doctor_reports_nic_state_and_permission(given: Guest) -> None:
    said = given.run("harp", "doctor").out
    assert f"ok    ztcp0.conf: {DATA.pci_id} is bound to" in said and "256 MiB of hugepages" in said
    kept_out = given.run(*NOBODY, "harp", "doctor").out
    why = "this user cannot open" if given.iommu else "only root may use"
    assert any("fault ztcp0.conf:" in line and why in line for line in kept_out.splitlines())
