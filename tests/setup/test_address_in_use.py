# SPDX-License-Identifier: Apache-2.0
"""harp setup does not give HARP an address that another host has (RFC 5227)."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tools.hosts.lab import Lab

OWN = "10.77.0.102"
ARGUMENTS = ("--device", "packet:eth0", "--address", f"{OWN}/24")

# Claims the address by ARP for this hardware address all the time, until the end of its input.
REPEAT = """
import select, socket, sys
address, mac = socket.inet_aton(sys.argv[1]), bytes.fromhex(sys.argv[2].replace(":", ""))
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
wire.bind(("eth0", 0))
claim = b"\\xff" * 6 + mac + bytes.fromhex("08060001080006040002") + mac + address + bytes(6)
while not select.select([sys.stdin], [], [], 0.01)[0]:
    wire.send(claim + address)
    print("said", flush=True)
"""


@pytest.fixture
def taken(lab: Lab) -> Any:
    """The other host's kernel has the address."""
    lab.hosts[0].run(["ip", "addr", "add", f"{OWN}/24", "dev", "eth0"])
    yield
    lab.hosts[0].run(["ip", "addr", "del", f"{OWN}/24", "dev", "eth0"])


@pytest.mark.parametrize("args", [("plan",), ("apply",), ("--yes",)])
def test_address_of_other_host_is_refused(
    args: tuple[str, ...], taken: None, lab: Lab, host: Any
) -> None:
    before = host.state()
    error = host.harp("setup", *args, *ARGUMENTS, code=1).stderr
    assert f"another host has {OWN} already: {lab.hosts[0].mac} answers ARP for it" in error
    assert "choose an address that no host has" in error
    assert host.state() == before


def test_address_taken_later_is_refused(lab: Lab, host: Any) -> None:
    """Set-up probes a configured address again; undo does not probe."""
    host.harp("setup", "apply", *ARGUMENTS)
    lab.hosts[0].run(["ip", "addr", "add", f"{OWN}/24", "dev", "eth0"])
    try:
        assert f"another host has {OWN}" in host.harp("setup", "--yes", code=1).stderr
        host.harp("setup", "undo")
    finally:
        lab.hosts[0].run(["ip", "addr", "del", f"{OWN}/24", "dev", "eth0"])


@pytest.mark.parametrize("own", [True, False], ids=["ours", "another's"])
def test_own_mac_in_arp_reply_is_no_conflict(own: bool, lab: Lab, host: Any) -> None:
    """A reply from the hardware address that HARP would use comes from a local rank."""
    mac = host.host.mac if own else "02:77:00:00:00:99"
    args = [sys.executable, "-u", "-c", REPEAT, OWN, mac]
    said = lab.hosts[0].popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert said.stdout and said.stdout.readline() == "said\n"
    done = host.harp("setup", "plan", *ARGUMENTS, code=0 if own else 1)
    said.communicate("end\n", timeout=30)
    assert (mac in done.stderr) != own
