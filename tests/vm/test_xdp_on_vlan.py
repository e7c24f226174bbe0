# SPDX-License-Identifier: Apache-2.0
"""Packet and xdp devices on VLAN interfaces (IEEE 802.1Q). The kernels of some build machines have
none, so two hosts in one guest stand for them."""

from __future__ import annotations

import pytest
from dpdk_guest import linux, needs_xdp
from guest import TEST_S, Done, Guest, build_dir

pytestmark = pytest.mark.timeout(TEST_S)

# Two ranks, each in a network namespace with a VLAN interface on one end of a veth pair. $1: scheme
# of the device. $2: harp-perf. $3: the plugin. Prints both ranks' lines.
JOB = """
set -e
folder=$(mktemp -d)
ip netns add one
ip netns add two
ip link add real0 netns one type veth peer name real0 netns two
number=0
for host in one two; do
  number=$((number + 1))
  in="ip netns exec $host"
  $in ip link set lo up
  $in ip link add link real0 name vlan5 type vlan id 5
  $in ip address add 10.66.0.$number/24 dev vlan5
  $in ip link set real0 up
  $in ip link set vlan5 up
  mkdir -p $folder/$host
  printf 'device = %s:vlan5\\n' "$1" >$folder/$host/ztcp0.conf
done
rank=0
for host in one two; do
  HARP_CONF_DIR=$folder/$host HARP_RUN_DIR=$folder/$host NCCL_DEBUG=INFO \\
    timeout 300 ip netns exec $host "$2" all_reduce -b 8 -e 64K -f 64 -n 2 -w 1 \\
    --rank $rank --nranks 2 --rendezvous 10.66.0.1:7777 --plugin "$3" >$folder/$host.out 2>&1 &
  eval "rank$rank=$!"
  rank=$((rank + 1))
done
status=0
wait $rank0 || status=1
wait $rank1 || status=1
cat $folder/one.out $folder/two.out
ip netns del one
ip netns del two
exit $status
"""


def run(guest: Guest, scheme: str) -> Done:
    args = (build_dir() / "harp/bench/harp-perf", build_dir() / "plugin/libnccl-net.so")
    return guest.run("sh", "-c", JOB, "sh", scheme, *map(str, args))


def test_packet_ranks_meet_on_vlan(guest: Guest) -> None:
    done = run(guest, "packet")
    assert done.code == 0, str(done)
    assert "packet:vlan5: packet vlan5, 10.66.0.1/24 (the kernel's)" in done.out, str(done)


@needs_xdp
def test_xdp_on_vlan_is_refused_with_remedy_or_works(guest: Guest) -> None:
    """Linux runs the program of a VLAN interface late, where a frame may have several buffers. It
    has sockets for these since 6.6."""
    done = run(guest, "xdp")
    if linux(guest) >= (6, 6):
        assert done.code == 0, str(done)
        assert "xdp:vlan5: xdp vlan5, 10.66.0.1/24 (the kernel's)" in done.out, str(done)
        return
    assert done.code == 1, str(done)
    assert "xdp:vlan5: the driver does not run XDP programs" in done.out, str(done)
    assert "use packet:vlan5; " in done.out, str(done)
