# SPDX-License-Identifier: Apache-2.0
"""dpdk: only one process drives a NIC, and a forked child does not. The tests use a fake /sys and
/dev; tests/vm has a NIC."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from port_probe import PROBE

ID = "0000:00:06.0"
DRIVER = "uio_pci_generic"
# Runs in a new mount namespace, like a container.
NAMESPACE = 'mount --bind "$1/sys" /sys; mount --bind "$1/dev" /dev; shift; exec "$@"'
BUS_MASTER = 0x04

Start = Callable[..., "Owner"]


class Owner:
    """A process that has claimed the NIC, or was refused."""

    def __init__(self, root: Path, driver: str) -> None:
        program = PROBE.parent / "owner_check"
        args = [str(program), ID, driver, "/dev/uio0"]
        self.process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-ec", NAMESPACE, "sh", str(root), *args],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        self.said = self._line()
        self.children: list[int] = []

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().rstrip("\n")

    def do(self, command: str) -> str:
        assert self.process.stdin
        self.process.stdin.write(command + "\n")
        return self._line()

    def child(self) -> int:
        """Forks a child, which closes the NIC and stays alive. Returns its pid."""
        self.children.append(int(self.do("child")))
        return self.children[-1]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        for child in self.children:
            os.kill(child, signal.SIGKILL)


def files(pid: int) -> dict[int, str]:
    folder = Path(f"/proc/{pid}/fd")
    return {int(name): os.readlink(folder / name) for name in os.listdir(folder)}


def device_files(pid: int) -> list[int]:
    return [fd for fd, target in files(pid).items() if target.endswith("/uio0")]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The fake root of /sys and /dev, with a NIC that no process has opened."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    if not (PROBE.parent / "owner_check").exists():
        pytest.skip("built without DPDK")
    for folder in (f"sys/bus/pci/devices/{ID}", f"sys/module/{DRIVER}", "dev"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "dev/uio0").touch()
    tell(tmp_path, command=0x02, openings="0")
    return tmp_path


def tell(root: Path, command: int, openings: str | None) -> None:
    """Sets the NIC's command register, and the number of open devices of its driver; None: the
    driver is no module."""
    header = bytes.fromhex("f41a0010") + command.to_bytes(2, "little") + bytes(58)
    (root / f"sys/bus/pci/devices/{ID}/config").write_bytes(header)
    count = root / f"sys/module/{DRIVER}/refcnt"
    count.unlink(missing_ok=True)
    if openings is not None:
        count.write_text(openings + "\n")


@pytest.fixture
def start(root: Path) -> Iterator[Start]:
    made: list[Owner] = []

    def make(driver: str = DRIVER) -> Owner:
        made.append(Owner(root, driver))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_device_has_one_owner_at_a_time(start: Start) -> None:
    first = start()
    assert first.said == "has 1"
    second = start()
    assert f"dpdk:{ID}: another process with HARP uses the device; end it" in second.said
    assert first.do("give") == "given"
    third = start()
    assert third.said == "has 1"
    third.end()
    assert start().said == "has 1"


def test_forked_child_keeps_no_device_descriptor(start: Start) -> None:
    """A child keeps neither the lock nor DPDK's descriptors: the last close stops the device."""
    parent = start()
    children = [parent.child() for _ in range(2)]
    assert len(device_files(parent.process.pid)) == 1
    for child in children:
        assert not device_files(child)
        assert not any(target.endswith("/config") for target in files(child).values())
    assert "another process with HARP" in start().said  # the parent still has it
    parent.process.kill()
    parent.process.wait()
    assert start().said == "has 1"
    for child in children:
        os.kill(child, 0)  # the child lives


def test_device_descriptor_is_close_on_exec(start: Start) -> None:
    """DPDK itself opens devices without close-on-exec."""
    owner = start()
    (device,) = device_files(owner.process.pid)
    text = Path(f"/proc/{owner.process.pid}/fdinfo/{device}").read_text()
    flags = int(text.split("flags:")[1].split()[0], 8)
    assert flags & os.O_CLOEXEC


@pytest.mark.parametrize(
    ("driver", "command", "openings", "refused"),
    [
        (DRIVER, BUS_MASTER, "1", True),
        (DRIVER, BUS_MASTER, None, True),
        (DRIVER, BUS_MASTER, "0", False),
        (DRIVER, 0x403, "1", False),
        ("", BUS_MASTER, "1", False),
    ],
    ids=["driven", "no module", "left on by nobody", "another NIC is driven", "vfio"],
)
def test_owner_in_other_namespace_is_detected(
    root: Path, start: Start, driver: str, command: int, openings: str | None, refused: bool
) -> None:
    """The owner is in another network namespace with another /sys, or in a container."""
    tell(root, command, openings)
    said = start(driver).said
    if refused:
        assert f"dpdk:{ID}: another process, perhaps in another container, uses" in said
        assert f"setpci -s {ID} COMMAND=0:4" in said
    else:
        assert said == "has 1"
