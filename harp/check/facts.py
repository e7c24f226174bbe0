# SPDX-License-Identifier: Apache-2.0
"""What one rank knows of its host: everything that all hosts of a job must agree on.

Facts are dicts of JSON, because the ranks send them to rank 0.
"""

from __future__ import annotations

import hmac
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

from harp import _tables, loader, paths
from harp.check import gpus
from harp.cli import doctor, env
from harp.cli.findings import Finding
from harp.setup import arp, host, sysfs
from harp.setup.plan import conf_dir, conf_files

ENABLED, HIDDEN, ABSENT, OTHER, OFF = "enabled", "hidden", "absent", "other", "off"

Facts = dict[str, Any]


def _nccl_plugin() -> tuple[str, Optional[Path]]:
    """What NCCL would load here, and its path."""
    if os.environ.get("HARP_DISABLE", "0") not in ("", "0"):
        return OFF, None
    named = os.environ.get("NCCL_NET_PLUGIN", "")
    if "/" in named:
        path = Path(named)
        return (ENABLED if loader.is_harp(path) else OTHER), path
    found, hidden = loader.find(loader.NAME), loader.find(loader.HIDDEN_NAME)
    if found:
        return (ENABLED if loader.is_harp(found) else OTHER), found
    if hidden and loader.is_harp(hidden):
        return HIDDEN, hidden
    return ABSENT, None


def plugin_path(named: Optional[Path]) -> Path:
    """The plugin to test: the named one, else HARP's plugin that NCCL would load, else that of
    this package. Raises FileNotFoundError."""
    if named:
        return named
    state, path = _nccl_plugin()
    return path if state == ENABLED and path else paths.nccl_plugin_path()


def _fingerprint(nonce: str) -> str:
    """Tells a key from others for this check only, so that nobody learns it. "": no key; "?": the
    key cannot be read, which doctor reports."""
    path = os.environ.get("HARP_KEY_FILE")
    if not path:
        return ""
    try:
        key = Path(path).read_bytes()
    except OSError:
        return "?"
    return hmac.new(key, nonce.encode(), "sha256").hexdigest()


def _conflict(interface: host.Interface, address: str) -> str:
    """The hardware address of another host with this kernel's address; "" for none."""
    try:
        found = arp.holder(interface.name, address, interface.mac)
    except OSError:  # no right to ask, or no link: doctor reports it
        return ""
    return found if found and found not in host.macs() else ""


def _nic(path: Path, values: dict[str, tuple[str, str]]) -> Facts:
    """The NIC of a ztcp*.conf. An address of HARP's own is probed by doctor. Raises HostError."""
    device = _tables.innermost(values["device"][0])
    scheme, _, name = device.partition(":")
    interface = host.interface(name) if scheme in ("packet", "xdp") else None
    shared = values["address"][0] == "kernel"
    address = values["address"][0]
    if shared:
        address = interface.addresses[0] if interface and interface.addresses else ""
    plain = address.partition("/")[0]
    mtu = values["mtu"][0]
    return {
        "file": path.name,
        "device": device,
        "interface": interface.name if interface else "",
        "address": plain,
        "prefix": address,
        "shared": shared,
        "mac": values["mac"][0] or (interface.mac if interface else ""),
        "mtu": int(mtu) if mtu else (interface.mtu if interface else 0),
        "mtu_key": bool(mtu),
        "conflict": _conflict(interface, plain) if shared and interface and plain else "",
    }


def _nics() -> Iterator[Facts]:
    for path in conf_files(conf_dir()):
        file = env.read(path)
        try:
            if not file.error:
                yield _nic(path, file.values)
        except host.HostError:  # doctor reports it
            continue


def _devices() -> list[Facts]:
    """The devices that NCCL sees; none if the configuration is wrong, which doctor reports."""
    try:
        names = ("name", "identity", "speed_mbps", "speed_known")
        return [{name: one[name] for name in names} for one in _tables.devices(conf_dir())]
    except _tables.ConfigError:
        return []


def _problems(findings: list[Finding]) -> list[dict[str, str]]:
    return [asdict(one) for one in findings if one.level != "ok"]


def troubles() -> list[str]:
    """What is wrong with this host alone, in lines, for a rank that cannot meet the others."""
    found = [one for one in doctor.all_findings(doctor.OF_HOST) if one.level == "fault"]
    lines = [f"{one.about}: {one.text}" for one in found]
    for nic in _nics():
        if nic["conflict"]:
            lines.append(
                f"address: another host, {nic['conflict']}, has {nic['address']}, too; give one "
                "of them another address"
            )
    return lines


def _host_id() -> str:
    """Tells hosts, and pods with networks of their own, apart."""
    boot = sysfs.text(sysfs.at("proc/sys/kernel/random/boot_id"))
    return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/net')}"


def gather(nonce: str) -> Facts:
    """The facts of this rank. nonce: random, the same for all ranks. It takes a second at most,
    unless the host is busy."""
    state, path = _nccl_plugin()
    return {
        "host": socket.gethostname(),
        "host_id": _host_id(),
        "release": _tables.version(),
        "state": state,
        "plugin": str(path or ""),
        "nics": list(_nics()),
        "devices": _devices(),
        "key": _fingerprint(nonce),
        "key_file": os.environ.get("HARP_KEY_FILE", ""),
        "checksum": os.environ.get("HARP_CHECKSUM", "0") not in ("", "0"),
        "may_open_sockets": host.may_open_packet_sockets(),
        "gpus": gpus.found(),
        "doctor": _problems(doctor.all_findings(doctor.OF_HOST)),
    }
