# SPDX-License-Identifier: Apache-2.0
"""The wheel for 64-bit Arm holds what this machine's wheel holds, and works in the emulator.

    ./tools/package wheel && ./tools/package wheel-arm64
    HARP_TEST_FULL=1 pytest tests/packages/test_arm64_wheel.py

The emulated system is build-arm64-root/ with a layer over it. It has Debian's Python for arm64.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from made_packages import newest

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = ROOT / "build-arm64-root"
EMULATOR = shutil.which("qemu-aarch64-static")
AARCH64 = 183  # e_machine of an ELF header
ELF = re.compile(rb"\x7fELF\x02\x01\x01", re.DOTALL)
OF_A_BUILD = ("RECORD", "WHEEL")  # they name the machine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("HARP_TEST_FULL"),
        reason="needs the wheels of ./tools/package; HARP_TEST_FULL=1",
    ),
    pytest.mark.timeout(1200),
]

# $1: the system, $2: a folder for a layer over it, $3: the wheel, $4: import_all.py. Installs the
# wheel by the emulated pip, runs commands, and moves a job over shared memory and over DPDK.
INSTALL_AND_RUN = """
ip link set lo up
mkdir "$2/upper" "$2/work" "$2/root"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
cd "$2/root"
mkdir -p dev proc sys tmp/a tmp/b
for folder in dev proc sys; do mount --rbind "/$folder" "$folder"; done
mount -t tmpfs tmpfs dev/shm
cp "$3" "$4" tmp
arm() { timeout 300 chroot . "$@"; }
arm python3 -m pip install --quiet --no-index --no-cache-dir --break-system-packages \\
  --root-user-action=ignore "/tmp/${3##*/}"
arm python3 -c 'import os, sys; print("machine", os.uname().machine, *sys.version_info[:2])'
arm harp --version
arm python3 /tmp/import_all.py "$(arm python3 -c \\
  'import pathlib, harp; print(pathlib.Path(harp.__file__).parents[1])')"
rank() {
  HARP_CONF_DIR=/tmp/$1 HARP_RUN_DIR=/tmp/$1 arm harp perf sendrecv -b 64K -e 64K -n 20 \\
    --nranks 2 --rendezvous 127.0.0.1:5177 --rank "$2"
}
job() {
  printf 'device = %s\\naddress = 10.9.0.1/24\\n' "$1" >tmp/a/ztcp0.conf
  printf 'device = %s\\naddress = 10.9.0.2/24\\n' "$2" >tmp/b/ztcp0.conf
  rank b 1 & other=$!
  rank a 0
  wait "$other"
}
job wire:/dev/shm/harp-arm wire:/dev/shm/harp-arm
job dpdk:net_vhost0,iface=/tmp/vhost dpdk:virtio_user0,path=/tmp/vhost
"""


@pytest.fixture(scope="module")
def wheel() -> Path:
    return newest("arm64/harp_nccl-*_aarch64.whl")


def contents(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def machines(data: bytes) -> set[int]:
    """The machines of an ELF file, or of the members of an archive."""
    starts = [found.start() for found in ELF.finditer(data)]
    if not data.startswith(b"!<arch>\n"):
        starts = [start for start in starts if start == 0]
    return {int.from_bytes(data[start + 18 : start + 20], "little") for start in starts}


def test_wheel_for_arm_holds_what_this_machines_wheel_holds(wheel: Path) -> None:
    here = contents(newest(f"harp_nccl-*_{platform.machine()}.whl"))
    there = contents(wheel)
    assert sorted(there) == sorted(here)
    built = {name for name, data in here.items() if machines(data)}
    assert "harp/libnccl-net-harp.so" in built and "harp/harp-perf" in built
    assert {name: machines(there[name]) for name in built} == {name: {AARCH64} for name in built}
    same = {name for name in here if name not in built and not name.endswith(OF_A_BUILD)}
    assert [name for name in sorted(same) if there[name] != here[name]] == []


def test_wheel_for_arm_has_dpdk_and_tag_of_old_systems(wheel: Path) -> None:
    assert re.fullmatch(r"harp_nccl-[\d.]+-cp39-abi3-manylinux_2_27_aarch64\.whl", wheel.name)
    assert b"net_ice" in contents(wheel)["harp/libnccl-net-harp.so"]
    done = subprocess.run(
        [Path(sys.executable).parent / "auditwheel", "show", wheel],
        capture_output=True, text=True, timeout=100, check=True)  # fmt: skip
    assert 'following platform tag: "manylinux_2_27_aarch64"' in " ".join(done.stdout.split())


@pytest.mark.skipif(not EMULATOR, reason="no emulator: apt-get install qemu-user-static")
def test_wheel_for_arm_works_in_emulator(wheel: Path, tmp_path: Path) -> None:
    assert SYSTEM.is_dir(), "no system for Arm: ./tools/package wheel-arm64"
    done = subprocess.run(
        [ROOT / "tools/packages/emulate", "unshare", "--net", "sh", "-euc", INSTALL_AND_RUN, "sh",
         SYSTEM, tmp_path, wheel, ROOT / "tests/import_all.py"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1100,
        env={"PATH": "/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin", "PYTHONPATH": "/python",
             "HOME": "/tmp", "LC_ALL": "C.UTF-8", "EMULATOR": str(EMULATOR)})  # fmt: skip
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert said.startswith("machine aarch64 3 ")
    assert "\nDPDK 22.11" in said and "\nchecksums by NEON\n" in said
    assert "\ndevices packet xdp dpdk wire fault\n" in said
    modules = [name for name in contents(wheel) if name.endswith(".abi3.so")]
    (imported,) = re.findall(r"^(\d+)$", said, re.MULTILINE)
    assert int(imported) > len(modules) > 0
    # A line of 64 KiB without a wrong byte: over shared memory, and over DPDK.
    plugin = r"HARP by /usr/local/\S+/harp/libnccl-net-harp\.so"
    assert len(re.findall(plugin, said)) == 2, said
    assert len(re.findall(r"^ +65536(?: +\S+){7} +0 ", said, re.MULTILINE)) == 2, said
