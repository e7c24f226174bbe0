# SPDX-License-Identifier: Apache-2.0
"""HARP on one host and sockets on the other: both sides fail in time, each with one clear line.

The host without HARP first logs why it declines. Then it uses sockets, as NCCL would, by the
reference plugin over kernel TCP. The handle of that plugin begins like that of NCCL's own socket
transport.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from ranks import SYSTEM_ERROR, Failed, Perf, Rank, Site, connect, packet_site

from harp import paths
from tools.hosts.lab import Lab

ENDS_S = 30.0  # far above the usual time with all starts, far below a hang
DECLINES = {
    "file missing": "no configuration: folder",
    "HARP_DISABLE=1": "HARP_DISABLE=1 in the environment: HARP declines",
}


def declining(folder: Path, lab: Lab, how: str) -> Site:
    """The site of the second host, where HARP declines."""
    site = packet_site(folder, lab.hosts[1])
    site.environment.update(NCCL_SOCKET_IFNAME=lab.hosts[1].interface)
    if how == "file missing":
        (folder / "ztcp0.conf").unlink()
    else:
        site.environment.update(HARP_DISABLE="1")
    return site


def declines(site: Site) -> str:
    """The one log line of HARP's failing init."""
    with Rank(site) as rank:
        with pytest.raises(Failed) as failure:
            rank.init()
        assert (failure.value.call, failure.value.code) == ("init", SYSTEM_ERROR)
        (line,) = rank.lines("NCCL ")
    assert "; NCCL goes on without HARP" in line
    return line


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("how", DECLINES)
@pytest.mark.parametrize("harps_rank", [0, 1], ids=["HARP first", "sockets first"])
@pytest.mark.parametrize("api", [4, 12])
def test_job_with_harp_on_one_host_fails_clearly(
    lab: Lab, tmp_path: Path, how: str, harps_rank: int, api: int
) -> None:
    """Every rank of a ring connects to its successor, so both ranks fail at once."""
    harp = packet_site(tmp_path / "harp", lab.hosts[0])
    without = declining(tmp_path / "without", lab, how)
    assert DECLINES[how] in declines(without)
    rendezvous = f"{lab.hosts[harps_rank].address}:29417"
    args = ["all_reduce", "-b", "1M", "-e", "1M", "--api", str(api)]
    with (
        Perf(harp, args, harps_rank, rendezvous) as one,
        Perf(without, [*args, "--kernel"], 1 - harps_rank, rendezvous) as other,
    ):
        assert [rank.wait(ENDS_S) for rank in (one, other)] == [1, 1]
        (warning,) = one.warnings
        assert re.search(
            rf"HARP: connect: the peer at {lab.hosts[1].address} port \d+ uses a socket transport, "
            r"not HARP\. Both hosts need the same libnccl-net\.so and a ztcp\*\.conf",
            warning,
        ), warning
        (warning,) = other.warnings
        assert "the peer uses another transport" in warning
        assert "let every rank load the same plugin" in warning


def test_kernel_plugin_handle_matches_nccl_sockets(lab: Lab, tmp_path: Path) -> None:
    """It begins like NCCL's: the listening address in the space of an IPv6 address, a magic number,
    the numbers of sockets and threads."""
    with Rank(declining(tmp_path, lab, "file missing"), plugin=paths.kernel_plugin_path()) as rank:
        rank.init()
        handle = bytes.fromhex(rank.listen()[1])
        family, port = struct.unpack("=H", handle[:2])[0], struct.unpack("!H", handle[2:4])[0]
        assert family == socket.AF_INET
        assert socket.inet_ntoa(handle[4:8]) == lab.hosts[1].address
        magic, sockets, threads = struct.unpack("=QII", handle[32:48])
        assert magic and (sockets, threads) == (1, 0)
        listening = lab.hosts[1].run(["ss", "-Htln", f"sport = :{port}"]).stdout
        assert f"{lab.hosts[1].address}:{port}" in listening


# Root without its right to read the files of others.
CAREFUL = [
    "setpriv",
    *(f"--{which}=-dac_override,-dac_read_search" for which in ("bounding-set", "inh-caps")),
]


def test_rank_that_cannot_read_a_file_declines_alone(lab: Lab, tmp_path: Path) -> None:
    """It could not tell NCCL the devices of the other ranks of its host. They keep HARP, and refuse
    to connect to it."""
    here, there = (packet_site(tmp_path / str(host.index), host) for host in lab.hosts)
    private = here.folder / "ztcp1.conf"
    private.write_text("device = packet:eth0\nflows = 2\n")
    private.chmod(0o600)
    os.chown(private, 65534, 65534)
    less = replace(here, prefix=[*here.prefix, *CAREFUL])
    less.environment = {**here.environment, "NCCL_SOCKET_IFNAME": lab.hosts[0].interface}
    line = declines(less)
    assert f"{private}: cannot be opened: Permission denied; make it readable for this user" in line
    with (
        Rank(here) as rank,
        Rank(there) as peer,
        Rank(less, plugin=paths.kernel_plugin_path()) as without,
    ):
        for one in (rank, peer, without):
            one.init()
        _, handle = without.listen()
        with pytest.raises(Failed) as failure:
            rank.connect(handle)
        assert (failure.value.call, failure.value.code) == ("connect", SYSTEM_ERROR)
        (warning,) = rank.warnings
        address = lab.hosts[0].address
        assert re.search(rf"the peer at {address} port \d+ uses a socket transport", warning), (
            warning
        )
        connect(rank, peer).move()
