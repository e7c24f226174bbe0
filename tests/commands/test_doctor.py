# SPDX-License-Identifier: Apache-2.0
"""harp doctor finds each injected fault and names a remedy."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ranks import Rank, Site

from harp import _tables, nccl_plugin_path
from harp.observe import statfile
from tools.hosts.lab import Host, Lab

Findings = Callable[..., dict[str, list[str]]]


@pytest.fixture
def host(lab: Lab) -> Host:
    return lab.hosts[0]


@pytest.fixture
def conf(folders: Path) -> Path:
    path = folders / "config" / "ztcp0.conf"
    path.write_text("device = packet:eth0\n")
    return path


@pytest.fixture
def findings(host: Host, conf: Path) -> Findings:
    """Runs doctor on a host and checks its exit status. Returns its texts by level."""

    def run(*prefix: str, **environment: str) -> dict[str, list[str]]:
        done = host.run(
            [*prefix, sys.executable, "-m", "harp", "doctor", "--json"], environment, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        found: dict[str, list[str]] = {"ok": [], "note": [], "fault": []}
        for one in json.loads(done.stdout)["findings"]:
            found[one["level"]].append(f"{one['about']}: {one['text']}")
        assert done.returncode == (1 if found["fault"] else 0)
        return found

    return run


def has(texts: list[str], part: str) -> bool:
    return any(part in text for text in texts)


def test_correct_host_has_no_fault(findings: Findings) -> None:
    found = findings()
    # Doctor also looks at the ranks of the whole machine, such as those of other tests.
    faults = [text for text in found["fault"] if not text.startswith(("plugin", "ranks"))]
    assert faults == []
    assert has(found["ok"], "ztcp0.conf: shares 10.77.0.1/24 of eth0")
    assert has(found["ok"], "devices: NCCL sees HARP0 eth0; harp env --devices shows more")
    assert has(found["ok"], "CAP_NET_RAW")
    assert has(found["ok"], "processes that use HARP now: 0")


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    "text, said",
    [
        ("device = packet:eth5", "interface); usable: eth0; correct device in /"),
        ("device = packet:lo", "lo is not an Ethernet interface"),
        ("device = packet:eth0\nmtu = 9000", "mtu = 9000 is more than eth0's 1500"),
        ("device = packet:eth0\naddress = 10.77.0.1/24", "10.77.0.1 is one of the kernel's"),
        ("device = packet:eth0\ncores = 4000", "cores [4000] are outside this process's"),
        ("devise = packet:eth0", "ztcp0.conf:1: unknown key 'devise'"),
        (
            "device = packet:eth0\naddress = 10.77.0.101/24\ngateway = 10.78.0.1",
            "gateway = 10.78.0.1 is outside the address's network (/24)",
        ),
        (
            "device = packet:eth0\ngateway = 10.78.0.1",
            "gateway = 10.78.0.1 is not reachable: it is outside 10.77.0.1/24 of eth0",
        ),
        (
            "device = dpdk:nosuch\naddress = 10.77.0.101/24",
            "there is no PCI device nosuch, and no DPDK software device of that name",
        ),
    ],
)
def test_file_faults_are_found(text: str, said: str, conf: Path, findings: Findings) -> None:
    conf.write_text(text)
    assert has(findings()["fault"], said)


FULL = 'mount -t tmpfs -o size=1m tmpfs "$HARP_RUN_DIR" && exec "$@"'


def test_full_run_folder_is_noted(findings: Findings) -> None:
    found = findings("unshare", "--mount", "sh", "-c", FULL, "sh")
    assert has(found["note"], "has only 1024 KiB of free space: a process needs up to 160 KiB")
    assert not has(findings()["note"], "run folder")


def test_missing_configuration_is_a_fault(conf: Path, findings: Findings) -> None:
    conf.unlink()
    assert has(findings()["fault"], "no ztcp*.conf in")
    conf.parent.rmdir()
    assert has(findings()["fault"], "no folder")


def test_ip_forwarding_with_own_address_is_a_fault(
    host: Host, conf: Path, findings: Findings
) -> None:
    conf.write_text("device = packet:eth0\naddress = 10.77.0.101/24\n")
    assert has(findings()["ok"], "10.77.0.101 is HARP's own on eth0")
    host.write("/proc/sys/net/ipv4/ip_forward", "1")
    assert has(findings()["fault"], "would handle packets for 10.77.0.101; run harp setup")
    host.run([sys.executable, "-m", "harp", "setup", "--yes"])
    assert has(findings()["ok"], "10.77.0.101 is HARP's own on eth0")
    host.run([sys.executable, "-m", "harp", "setup", "undo"])
    host.write("/proc/sys/net/ipv4/ip_forward", "0")


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("mac", ["", "mac = 02:77:00:00:01:01\n"], ids=["interface's", "own"])
def test_address_of_other_host_is_a_fault(
    mac: str, lab: Lab, conf: Path, findings: Findings
) -> None:
    conf.write_text(f"device = packet:eth0\naddress = 10.77.0.101/24\n{mac}")
    other = lab.hosts[1]
    other.run(["ip", "addr", "add", "10.77.0.101/24", "dev", "eth0"])
    try:
        found = findings()["fault"]
    finally:
        other.run(["ip", "addr", "del", "10.77.0.101/24", "dev", "eth0"])
    assert has(found, f"another host has 10.77.0.101 already: {other.mac} answers ARP for it")
    assert has(findings()["ok"], "10.77.0.101 is HARP's own on eth0")


@pytest.mark.parametrize("mac", ["", "mac = 02:77:00:00:01:01\n"], ids=["interface's", "own"])
def test_address_of_local_rank_is_no_fault(
    mac: str, host: Host, conf: Path, findings: Findings
) -> None:
    """A local rank answers ARP for the address, which is no conflict. doctor's probe does not harm
    it."""
    conf.write_text(f"device = packet:eth0\naddress = 10.77.0.101/24\n{mac}")
    run_folder = os.environ["HARP_RUN_DIR"]
    with Rank(Site(conf.parent, host.command([]), {"HARP_RUN_DIR": run_folder})) as rank:
        rank.init()
        found = findings()
        (process,) = statfile.scan([Path(run_folder)])
    assert process.instances[0]["arp_requests_in"] >= 3, "it has not received the probes"
    assert process.instances[0]["arp_conflicts"] == 0
    assert has(found["ok"], f"HARP's own on eth0; in use by process {process.pid}")
    assert not has(found["fault"], "10.77.0.101")


@pytest.fixture
def two_nics(host: Host, conf: Path) -> Iterator[None]:
    """Two NICs in one subnet, with a file each and Linux's ARP settings."""
    host.run(["ip", "link", "add", "nic0", "type", "veth", "peer", "name", "nic1"])
    for number in range(2):
        host.run(["ip", "address", "add", f"10.79.0.{number + 1}/24", "dev", f"nic{number}"])
        host.run(["ip", "link", "set", f"nic{number}", "up"])
        conf.with_name(f"ztcp{number}.conf").write_text(f"device = packet:nic{number}\n")
    for name in ("all", "nic0", "nic1"):
        host.write(f"/proc/sys/net/ipv4/conf/{name}/arp_ignore", "0")
    yield
    host.write("/proc/sys/net/ipv4/conf/all/arp_ignore", "0")
    host.run(["ip", "link", "del", "nic0"])


@pytest.mark.usefixtures("two_nics")
def test_arp_for_other_nics_in_one_subnet_is_a_fault(
    host: Host, conf: Path, findings: Findings
) -> None:
    def ignore(name: str, value: int) -> None:
        host.write(f"/proc/sys/net/ipv4/conf/{name}/arp_ignore", str(value))

    where = "ARP: nic0 and nic1 are in one subnet, 10.79.0.0/24, and the kernel answers ARP on "
    found = findings()["fault"]
    assert has(found, f"{where}nic0 and nic1 for the addresses of all of them (arp_ignore = 0)")
    assert has(found, "run harp setup, which sets it, or sysctl -w net.ipv4.conf.all.arp_ignore=1")
    ignore("nic0", 1)
    assert has(findings()["fault"], f"{where}nic1 for")
    ignore("nic1", 2)
    assert has(findings()["ok"], "ARP: nic0 and nic1 are in 10.79.0.0/24; each answers for itself")
    ignore("nic0", 0)
    ignore("all", 1)
    assert not has(findings()["fault"], "ARP")
    ignore("all", 0)
    conf.write_text("device = packet:nic0\naddress = 10.79.0.9/24\n")
    assert not has(findings()["fault"], "ARP")


def test_link_down_is_a_fault(host: Host, findings: Findings) -> None:
    host.set_link(False)
    try:
        assert has(findings()["fault"], "eth0 is down; ip link set eth0 up")
    finally:
        host.set_link(True)


def test_claim_is_noted(conf: Path, findings: Findings) -> None:
    fd = os.open(conf, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert has(findings()["note"], f"ztcp0.conf: in use by process {os.getpid()}")
    os.close(fd)


def test_missing_cap_net_raw_is_a_fault(findings: Findings) -> None:
    found = findings("setpriv", "--bounding-set", "-net_raw", "--inh-caps", "-net_raw")
    assert has(found["fault"], "need CAP_NET_RAW")


def test_environment_faults_are_found(folders: Path, findings: Findings) -> None:
    found = findings(
        HARP_DISABLE="1", HARP_DEVICE="packet:eth0", NCCL_NET="Socket", HARP_RUN_DIR="/absent"
    )
    assert has(found["fault"], "HARP_DISABLE is set")
    assert has(found["fault"], "NCCL_NET=Socket keeps NCCL from HARP")
    assert has(found["note"], "HARP_DEVICE has no effect")
    assert has(
        found["note"],
        f"/absent is missing or not writable: statistics go to /dev/shm/harp-{os.geteuid()}",
    )


def test_wrong_number_of_devices_is_a_fault(findings: Findings) -> None:
    assert has(findings(HARP_DEVICES="2")["fault"], "devices: HARP_DEVICES=2: the only value is 1")
    assert has(findings(HARP_DEVICES="1")["ok"], "devices: NCCL sees one device for all NICs")


def test_unknown_variables_are_noted(findings: Findings) -> None:
    found = findings(HARP_FLOW="4", HARP_ELEPHANT="1", HARP_TEST_SEED="7")
    assert has(found["note"], "HARP_FLOW is not a variable of HARP's; do you mean HARP_FLOWS?")
    assert has(found["note"], "HARP_ELEPHANT is not a variable of HARP's; see harp env")
    assert not has(found["note"], "HARP_TEST")


def test_key_file_faults_are_found(folders: Path, findings: Findings) -> None:
    key = folders / "key"
    assert has(findings(HARP_KEY_FILE=str(key))["fault"], f"{key}: No such file")
    key.write_text("too short\n")
    assert has(findings(HARP_KEY_FILE=str(key))["fault"], "a key has at least 16 bytes")
    key.write_text("x" * 4097)
    assert has(findings(HARP_KEY_FILE=str(key))["fault"], "a key has at most 4096 bytes")
    key.write_text("0123456789abcdef\n")
    key.chmod(0o644)
    assert has(findings(HARP_KEY_FILE=str(key))["note"], f"may read or change it; chmod 600 {key}")
    key.chmod(0o600)
    assert has(findings(HARP_KEY_FILE=str(key))["ok"], f"HARP_KEY_FILE {key} holds a key")
    assert not any("HARP_KEY_FILE" in text for text in findings(HARP_KEY_FILE="")["fault"])


def test_dpdk_device_without_dpdk_build_is_a_fault(
    conf: Path, folders: Path, findings: Findings
) -> None:
    conf.write_text("device = dpdk:virtio_user0,path=/x\naddress = 10.77.0.101/24\n")
    without = (
        "dpdk:virtio_user0: this HARP was built without DPDK; build it on a host with libdpdk-dev"
    )
    plugin = nccl_plugin_path().read_bytes()
    assert has(findings()["fault"], without) == (b"was built without DPDK" in plugin)
    build = folders / "build"
    (build / "harp").mkdir(parents=True)
    shutil.copy(_tables.__file__, build / "harp")
    (build / "plugin").mkdir()
    # The text that dpdk_glue/dpdk/ethdev_absent.c puts into a plugin without DPDK.
    none = (Path(__file__).parents[2] / "dpdk_glue" / "dpdk" / "ethdev_absent.c").read_text()
    (said,) = re.findall(r"this HARP was built without DPDK", none)
    (build / "plugin" / "libnccl-net.so").write_bytes(plugin + said.encode())
    assert has(findings(HARP_BUILD_DIR=str(build))["fault"], without)


def test_library_that_nccl_loads_is_reported(folders: Path, findings: Findings) -> None:
    library = folders / "libnccl-net.so"
    library.write_text("HARP_CONF_DIR")
    assert has(findings(LD_LIBRARY_PATH=str(folders))["ok"], f"NCCL: loads {library}")
    library.write_text("another")
    assert has(findings(LD_LIBRARY_PATH=str(folders))["note"], "another vendor's plugin")
    library.rename(folders / "bak.libnccl-net.so")
    assert has(findings(LD_LIBRARY_PATH=str(folders))["note"], "is disabled; run harp enable")
    assert has(findings(NCCL_NET_PLUGIN="x")["note"], "NCCL_NET_PLUGIN=x selects")


def test_missing_plugin_is_a_fault(folders: Path, findings: Findings) -> None:
    build = folders / "build" / "harp"
    build.mkdir(parents=True)
    shutil.copy(_tables.__file__, build)
    assert has(findings(HARP_BUILD_DIR=str(build.parent))["fault"], "build it with")


def test_file_that_repeats_another_is_noted(findings: Findings, conf: Path) -> None:
    conf.with_name("ztcp1.conf").write_text("device = packet:eth0\naddress = 10.77.0.105/24\n")
    conf.with_name("ztcp2.conf").write_text("device = fault:drop=0|packet:eth0\n")
    notes = [text for text in findings()["note"] if "repeats" in text]
    assert notes == ["ztcp2.conf: repeats the NIC and address of ztcp0.conf; remove one of them"]
