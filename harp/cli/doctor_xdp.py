# SPDX-License-Identifier: Apache-2.0
"""The checks of `harp doctor` for xdp devices: kernel, driver, capabilities, locked memory, and the
NIC's settings. Changes nothing."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from typing import Optional

from harp import loader, nccl_plugin_path
from harp.cli.env import Values
from harp.cli.findings import Finding, fault, note, ok
from harp.setup import host, nic_settings, xdp_features
from harp.setup.request import place_of

NEEDED = (5, 10)  # Linux: links that attach XDP programs, and maps that a process maps
SEVERAL = (6, 6)  # Linux: frames of several buffers at AF_XDP sockets

# As in dpdk_glue/xdp/xdp_socket.h.
_ETHERNET, _HEADROOM, _SMALL, _LARGE = 14, 256, 2048, 4096  # bytes
_RX_BYTES, _RX_CHUNKS, _TX_CHUNKS = 6 << 20, 256, 1024


def _kernel() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(found[1]), int(found[2])) if found else NEEDED


def _mode(values: Values) -> str:
    found = re.search(r",mode=(\w+)", values["device"][0])
    return found[1] if found else "auto"


def locked_mib(mtu: int, queues: int) -> int:
    """The memory that the sockets of an interface lock, in MiB."""
    chunk = _SMALL if mtu + _ETHERNET <= _SMALL - _HEADROOM else _LARGE
    rx = max(_RX_BYTES // chunk // queues, _RX_CHUNKS)
    return -(-(rx * queues + _TX_CHUNKS) * chunk // (1 << 20))


def _check_build(about: str) -> Iterator[Finding]:
    try:
        lacks = loader.lacks_xdp(nccl_plugin_path())
    except FileNotFoundError:
        return  # built_plugin() reports it
    if lacks:
        yield fault(
            about,
            "this HARP was built without XDP; build it on a host with clang, or use packet:IFACE",
        )


def _check_kernel(about: str, mtu: int) -> Iterator[Finding]:
    now = _kernel()
    most = _LARGE - _HEADROOM - _ETHERNET
    if now < NEEDED:
        yield fault(about, f"xdp devices need Linux 5.10, and this is {os.uname().release}")
    elif now < SEVERAL and mtu > most:
        yield fault(
            about,
            f"an MTU of {mtu} needs Linux 6.6, and this is {os.uname().release}; set mtu = {most} "
            "on all hosts, or use a packet device",
        )


def _check_driver(about: str, device: host.Interface, mode: str, mtu: int) -> Iterator[Finding]:
    driver = device.driver or "a virtual interface"
    told = xdp_features.features(device.name)
    if told is None:
        yield note(about, f"this kernel does not tell what {driver} offers to XDP (Linux 6.3 does)")
        return
    if mode == "zerocopy" and not told.zero_copy:
        yield fault(
            about, f"mode=zerocopy: {driver} has no zero-copy sockets; set device = "
            f"xdp:{device.name}"
        )  # fmt: skip
    elif not told.native:
        yield note(
            about,
            f"{driver} runs no XDP programs: the kernel runs HARP's later, in copy mode; a packet "
            f"device may be faster",
        )
    else:
        way = "zero-copy" if told.zero_copy and mode != "copy" else "copy mode"
        yield ok(about, f"{driver} runs XDP programs; sockets in {way}")
    if told.native and mtu > _LARGE - _HEADROOM - _ETHERNET and not told.several_buffers:
        yield fault(
            about,
            f"an MTU of {mtu} needs frames of several buffers, which {driver} does not give to XDP "
            f"programs; set mtu = {_LARGE - _HEADROOM - _ETHERNET} on all hosts, or use a packet "
            "device",
        )


def _check_privileges(about: str, needed: int) -> Iterator[Finding]:
    """needed: locked memory, MiB."""
    missing = [
        f"CAP_{name.upper()}"
        for name in ("net_admin", "bpf")
        if not host.has_capability(name) and not host.has_capability("sys_admin")
    ]
    if missing:
        yield fault(
            about,
            f"xdp devices need {' and '.join(missing)}; run as root, add the capabilities, or run "
            "harp agent on this node",
        )
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = limit == resource.RLIM_INFINITY or host.has_capability("ipc_lock")
    if not unlimited and limit >> 20 < needed:
        yield fault(
            about,
            f"the sockets lock {needed} MiB of memory, and this process may lock {limit >> 20}; "
            "raise ulimit -l, or add CAP_IPC_LOCK",
        )


def _check_settings(about: str, name: str) -> Iterator[Finding]:
    wanted = nic_settings.wanted(name)
    faults = {
        "lro": "LRO is on",
        "rx-gro-hw": "GRO in hardware is on",
        "queues": "it has too many queues",
    }
    for key, text in faults.items():
        if key in wanted:
            yield fault(
                about,
                f"{name}: {text}; run harp setup, or "
                f"{nic_settings.command(name, key, wanted[key])}",
            )
    if "rx-ring" in wanted:
        yield note(
            about,
            f"{name}: its receive ring is small; run harp setup, or "
            f"{nic_settings.command(name, 'rx-ring', wanted['rx-ring'])}",
        )


def _check_vlans(about: str, name: str) -> Iterator[Finding]:
    vlans = host.vlans(name)
    if vlans and nic_settings.value(name, "rxvlan"):
        yield note(
            about,
            f"{name} carries VLANs ({', '.join(vlans)}), and takes the tag out of a frame before "
            "the XDP program sees it: hosts on these VLANs can send segments to HARP; run "
            f"{nic_settings.command(name, 'rxvlan', 0)}",
        )


def _check_program(about: str, name: str, in_use: bool) -> Iterator[Finding]:
    program: Optional[str] = xdp_features.attached(name)
    if program and not in_use:
        yield fault(
            about,
            f"{name} has an XDP program already: {program}; end its owner, or use packet:{name}",
        )


def check(about: str, values: Values, in_use: bool, agent: bool) -> Iterator[Finding]:
    """The findings for an xdp device; `about` is its file's name. in_use: a process has claimed
    the file. agent: the node's agent opens the sockets, and has the privileges. Raises HostError
    or OSError."""
    yield from _check_build(about)
    device = host.interface(place_of(values["device"][0]))
    if device is None:
        return  # the checks of every interface report it
    mtu = int(values["mtu"][0] or device.mtu)
    yield from _check_kernel(about, mtu)
    yield from _check_driver(about, device, _mode(values), mtu)
    yield from _check_settings(about, device.name)
    yield from _check_vlans(about, device.name)
    yield from _check_program(about, device.name, in_use)
    if not agent:
        queues = nic_settings.value(device.name, "queues") or 1
        yield from _check_privileges(about, locked_mib(mtu, queues))
