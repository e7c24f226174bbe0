# SPDX-License-Identifier: Apache-2.0
"""The kernels send TCP only for the ranks' rendezvous while HARP moves a job's bytes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ranks import Failed, Perf, Rank, connect, packet_site

from tools.hosts.lab import Host, Lab
from tools.measure.carriers import Watch

RENDEZVOUS_PORT = 29600


def sent_by_kernel(host: Host) -> dict[str, int]:
    """The counters of everything that a kernel could send in HARP's place."""
    counters = host.counters()
    names = ("TcpOutSegs", "TcpRetransSegs", "TcpOutRsts", "TcpAttemptFails", "IcmpOutMsgs")
    return {name: counters[name] for name in names}


@pytest.mark.parametrize("own_address", [False, True], ids=["kernel address", "own address"])
def test_kernel_sends_no_segment_during_link_lifetime(
    lab: Lab, tmp_path: Path, own_address: bool
) -> None:
    """The kernel sends no segment for connect, transfer, close, or a refused connection."""
    before = [sent_by_kernel(host) for host in lab.hosts]
    sites = [packet_site(tmp_path / str(h.index), h, own_address) for h in lab.hosts]
    with Rank(sites[0]) as one, Rank(sites[1]) as other:
        one.init()
        other.init()
        for sender, receiver in ((one, other), (other, one)) * 3:
            link = connect(sender, receiver)
            link.move(count=16, size=1 << 20)
            sender.do("close", link.sends)
            receiver.do("close", link.receives)
        listener, handle = other.listen()
        other.do("unlisten", listener)
        one.start("connect", handle, 2000)
        with pytest.raises(Failed):
            one.finish()
        time.sleep(0.2)  # until both directions of every connection have closed
        for rank in (one, other):
            rank.do("finalize")
    assert [sent_by_kernel(host) for host in lab.hosts] == before


@pytest.mark.slow
@pytest.mark.parametrize("own_address", [False, True], ids=["kernel address", "own address"])
def test_kernel_sends_only_control_traffic_during_all_reduce(
    lab: Lab, tmp_path: Path, own_address: bool
) -> None:
    """The kernels' counters increase exactly by the captured segments of the control connection."""
    sites = [packet_site(tmp_path / str(h.index), h, own_address) for h in lab.hosts]
    args = ["all_reduce", "-b", "8", "-e", "8M", "-f", "32", "-n", "5", "-w", "1"]
    rendezvous = f"{lab.hosts[0].address}:{RENDEZVOUS_PORT}"
    with Watch(lab, RENDEZVOUS_PORT) as watch:
        with (
            Perf(sites[0], args, 0, rendezvous) as one,
            Perf(sites[1], args, 1, rendezvous) as other,
        ):
            for rank in (one, other):
                assert rank.wait(40) == 0, rank.lines()
            assert one.wrong() == [0] * len(one.wrong()) != []
    seen = watch.seen
    assert seen
    assert seen.kernel_only_controlled(), seen.kernel_text()
    assert 0 < sum(seen.control_segments) < 500
    # All bytes of the timed and verified passes used HARP's ports.
    assert seen.data_bytes > 2 * 5 * (8 << 20)
    addresses = {site.address for site in sites}
    assert {address for address, _ in seen.data_ports} == addresses
