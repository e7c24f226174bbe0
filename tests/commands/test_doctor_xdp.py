# SPDX-License-Identifier: Apache-2.0
"""harp doctor on xdp devices: each injected fault is found, with a remedy."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest
from ranks import Rank, Site
from test_doctor import Findings, conf, findings, has, host

from harp import paths
from harp.cli import doctor_xdp
from harp.cli.findings import Finding
from harp.setup import sysfs
from harp.setup.xdp_features import Features
from tools.hosts.lab import Host

__all__ = ["conf", "findings", "host"]

BUILD = paths.build_dir() / "dpdk_glue"
pytestmark = pytest.mark.skipif(
    not (BUILD / "xdp_program.o").exists(), reason="this build has no XDP (no clang)"
)


@pytest.fixture(autouse=True)
def xdp(conf: Path) -> None:
    conf.write_text("device = xdp:eth0,mode=copy\n")


def test_correct_device_has_no_fault(findings: Findings) -> None:
    found = findings()
    assert [text for text in found["fault"] if "ztcp0.conf" in text] == []
    assert has(found["ok"], "ztcp0.conf: shares 10.77.0.1/24 of eth0")
    assert has(found["ok"], "ztcp0.conf: a virtual interface runs XDP programs; sockets in copy")


@pytest.mark.parametrize(
    "text, said",
    [
        ("device = xdp:eth5", "no interface eth5"),
        ("device = xdp:eth0,mode=zerocopy", "a virtual interface has no zero-copy sockets; set"),
        ("device = xdp:eth0\nmtu = 9000", "mtu = 9000 is more than eth0's 1500"),
    ],
)
def test_wrong_files_are_found(conf: Path, findings: Findings, text: str, said: str) -> None:
    conf.write_text(text)
    assert has(findings()["fault"], said)


def test_missing_capabilities_are_found(findings: Findings) -> None:
    some = "-all,+net_raw,+net_admin"
    limited = ["prlimit", "--memlock=1048576", "setpriv", f"--bounding-set={some}"]
    faults = findings(*limited, f"--inh-caps={some}")["fault"]
    assert has(faults, "xdp devices need CAP_BPF; run as root, add the capabilities, or run harp")
    assert has(faults, "the sockets lock 8 MiB of memory, and this process may lock 1; raise")


def test_agent_that_has_ended_gives_no_privileges(findings: Findings, tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as ended:
        ended.bind(str(path))
    limited = ["setpriv", "--bounding-set=-all,+net_raw", "--inh-caps=-all,+net_raw"]
    faults = findings(*limited, HARP_AGENT=str(path))["fault"]
    assert has(faults, "xdp devices need CAP_NET_ADMIN and CAP_BPF")


def test_program_of_another_owner_is_found(findings: Findings, host: Host) -> None:
    args = [BUILD / "xdp_check", host.mac, host.address, "1-2", "eth0"]
    foreign = host.popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert foreign.stdout and foreign.stdout.readline() == "attached\n"
    faults = findings()["fault"]
    foreign.communicate(timeout=10)
    assert has(faults, "eth0 has an XDP program already: harp (id "), faults
    assert not has(findings()["fault"], "XDP program")


def test_program_of_a_running_rank_is_no_fault(
    findings: Findings, host: Host, folders: Path
) -> None:
    site = Site(folders / "config", host.command([]))
    with Rank(site) as rank:
        rank.init()
        found = findings()
    assert has(found["note"], "in use by process")
    assert not has(found["fault"], "XDP program")


# Other kernels and drivers


def said(monkeypatch: pytest.MonkeyPatch, mtu: int, mode: str = "auto", **changes: object) -> str:
    """The findings about an interface that does not exist, as text."""
    for name, value in changes.items():
        monkeypatch.setattr(doctor_xdp, name, lambda *_, value=value: value)
    device = doctor_xdp.host.Interface("eth1", True, True, True, mtu, "", "ice", False, [])
    found: list[Finding] = [
        *doctor_xdp._check_kernel("about", mtu),
        *doctor_xdp._check_driver("about", device, mode, mtu),
    ]
    return " | ".join(f"{one.level} {one.text}" for one in found)


FULL = Features(native=True, zero_copy=True, several_buffers=True)


@pytest.mark.parametrize(
    "kernel, features, mtu, mode, part",
    [
        ((5, 9), FULL, 1500, "auto", "fault xdp devices need Linux 5.10"),
        ((6, 5), FULL, 9000, "auto", "fault an MTU of 9000 needs Linux 6.6"),
        ((6, 6), FULL, 9000, "auto", "ok ice runs XDP programs; sockets in zero-copy"),
        ((6, 5), FULL, 3826, "zerocopy", "ok ice runs XDP programs; sockets in zero-copy"),
        ((6, 6), FULL, 1500, "copy", "sockets in copy mode"),
        ((6, 6), Features(True, False, True), 1500, "auto", "sockets in copy mode"),
        ((6, 6), Features(True, True, False), 9000, "auto", "which ice does not give"),
        ((6, 6), Features(False, False, False), 1500, "auto", "note ice runs no XDP programs"),
        ((5, 15), None, 1500, "auto", "note this kernel does not tell what ice offers"),
    ],
)
def test_kernels_and_drivers_are_judged(
    monkeypatch: pytest.MonkeyPatch,
    kernel: tuple[int, int],
    features: Features | None,
    mtu: int,
    mode: str,
    part: str,
) -> None:
    monkeypatch.setattr(doctor_xdp.xdp_features, "features", lambda _: features)
    text = said(monkeypatch, mtu, mode, _kernel=kernel)
    assert part in text
    assert ("fault" in text) == (part.startswith("fault") or "does not give" in part)


def test_settings_of_the_nic_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"lro": 0, "rx-gro-hw": 0, "queues": 64, "rx-ring": 1024}
    monkeypatch.setattr(doctor_xdp.nic_settings, "wanted", lambda _: wanted)
    found = list(doctor_xdp._check_settings("about", "eth1"))
    assert [one.level for one in found] == ["fault", "fault", "fault", "note"]
    assert "eth1: LRO is on; run harp setup, or ethtool -K eth1 lro off" in found[0].text
    assert (
        "GRO in hardware is on; run harp setup, or ethtool -K eth1 rx-gro-hw off" in found[1].text
    )
    assert "ethtool -L eth1 rx 64" in found[2].text and "-G eth1 rx 1024" in found[3].text


def test_trunk_with_vlan_offload_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The program sees no tag that the NIC has taken out of a frame."""
    folder = tmp_path / "sys/class/net"
    for name, kind in (("eth1.5", "vlan"), ("br0", "bridge")):
        (folder / name).mkdir(parents=True)
        (folder / name / "uevent").write_text(f"DEVTYPE={kind}\nINTERFACE={name}\n")
        (folder / "eth1").mkdir(exist_ok=True)
        (folder / "eth1" / f"upper_{name}").symlink_to(folder / name)
    monkeypatch.setattr(sysfs, "ROOT", tmp_path)
    offload = {"eth1": 1}
    monkeypatch.setattr(doctor_xdp.nic_settings, "value", lambda name, key: offload[name])
    (found,) = doctor_xdp._check_vlans("about", "eth1")
    assert found.level == "note" and "eth1 carries VLANs (eth1.5), and takes" in found.text
    assert found.text.endswith("run ethtool -K eth1 rxvlan off")
    offload["eth1"] = 0
    assert not list(doctor_xdp._check_vlans("about", "eth1"))
    offload["br0"] = 1
    assert not list(doctor_xdp._check_vlans("about", "br0"))


@pytest.mark.parametrize("mtu, queues, mib", [(1500, 1, 8), (9000, 1, 10), (1500, 64, 34)])
def test_locked_memory_is_that_of_the_sockets(mtu: int, queues: int, mib: int) -> None:
    assert doctor_xdp.locked_mib(mtu, queues) == mib
