# SPDX-License-Identifier: Apache-2.0
"""`harp doctor`: checks whether HARP can work on this host, with one line a finding."""

from __future__ import annotations

import ctypes
import ipaddress
import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from harp import _tables, loader, nccl_plugin_path
from harp.api_versions import APIS
from harp.cli import doctor_agent, doctor_cpu, doctor_dpdk, doctor_ranks, doctor_xdp, env
from harp.cli.findings import Finding, fault, note, ok
from harp.observe import statfile
from harp.setup import arp, host, one_subnet
from harp.setup.plan import conf_dir, conf_files, run_dir
from harp.setup.request import is_on_interface, place_of, scheme_of
from harp.setup.steps import StepError

ROOM = 2 << 20  # bytes in the run folder, for statistics and a trace


# -- configuration


def _holders(path: Path) -> list[int]:
    """The processes that hold a lock on the file, by /proc/locks. An attempt to take the lock
    could make a starting job fail."""
    status = path.stat()
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    found = []
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == place:
            found.append(int(fields[4]))
    return found


def _check_interface(about: str, name: str, values: env.Values) -> Iterator[Finding]:
    device = host.interface(name)
    if device is None:
        yield fault(
            about,
            f"no interface {name} in this network namespace (a pod needs hostNetwork or its own "
            f"interface); usable: {host.usable()}; correct device in {conf_dir() / about}",
        )
        return
    if not device.ethernet:
        yield fault(about, f"{name} is not an Ethernet interface")
    if not device.up:
        yield fault(about, f"{name} is down; ip link set {name} up")
    elif not device.carrier:
        yield fault(about, f"{name} has no carrier; check the cable and the other end")
    mtu = values["mtu"][0]
    if mtu and int(mtu) > device.mtu:
        yield fault(
            about,
            f"mtu = {mtu} is more than {name}'s {device.mtu}; lower it, or "
            f"ip link set {name} mtu {mtu}",
        )
    yield from _check_address(about, device, values)


def _reaches(interface: host.Interface, gateway: str) -> bool:
    """Whether the gateway is in one of the interface's networks, or the interface has a /32
    address."""
    networks = [ipaddress.ip_interface(one).network for one in interface.addresses]
    gate = ipaddress.ip_address(gateway)
    return any(network.prefixlen == 32 or gate in network for network in networks)


def _check_holder(about: str, device: host.Interface, own: str, mac: str) -> Iterator[Finding]:
    """Probes by ARP whether another host uses the address. Replies from `mac`, which a rank of
    this host may send, do not count."""
    try:
        other = arp.holder(device.name, own, mac) if device.up and device.ethernet else None
    except PermissionError:  # privileges() reports it
        return
    if other:
        yield fault(
            about,
            f"another host has {own} already: {other} answers ARP for it; remove the address from "
            "that host, or set an address that no host has",
        )
        return
    ranks = [one for one in statfile.scan() if one.address.partition("/")[0] == own]
    used = f"; in use by {', '.join(f'process {one.pid}' for one in ranks)}" if ranks else ""
    yield ok(about, f"{own} is HARP's own on {device.name}{used}")


def _check_address(about: str, device: host.Interface, values: env.Values) -> Iterator[Finding]:
    address, gateway = values["address"][0], values["gateway"][0]
    if address == "kernel":
        if device.addresses and gateway and not _reaches(device, gateway):
            yield fault(
                about,
                f"gateway = {gateway} is not reachable: it is outside "
                f"{' and '.join(device.addresses)} of {device.name}; correct it, or remove the "
                "key: HARP then uses the kernel's route",
            )
        elif device.addresses:
            yield ok(about, f"shares {device.addresses[0]} of {device.name}")
        else:
            yield fault(
                about,
                f"{device.name} has no IPv4 address to share; add one, or give HARP its own "
                "address",
            )
        return
    own = address.partition("/")[0]
    if host.is_local(own):
        yield fault(
            about,
            f"{own} is one of the kernel's addresses; remove it from the interface, or set "
            "address = kernel",
        )
    elif host.forwards(device.name) and not host.has_blackhole(own):
        yield fault(
            about,
            f"this host forwards, and its kernel would handle packets for {own}; run harp setup",
        )
    else:
        yield from _check_holder(about, device, own, values["mac"][0] or device.mac)


def _check_cores(about: str, values: env.Values) -> Iterator[Finding]:
    allowed = os.sched_getaffinity(0)
    cores = {int(core) for core in values["cores"][0].split(",") if core}
    if not cores <= allowed:
        yield fault(
            about,
            f"cores {sorted(cores - allowed)} are outside this process's CPU affinity; see "
            "taskset -p, or the container's cpuset",
        )
    instances = int(values["instances"][0] or 1)
    if instances > len(allowed):
        yield note(
            about,
            f"instances = {instances} on {len(allowed)} CPUs: instances will compete for CPUs",
        )


def _check_file(path: Path, file: env.File) -> Iterator[Finding]:
    about = path.name
    if file.error:
        yield fault(about, file.error)
        return
    device, holders = file.values["device"][0], _holders(path)
    scheme, place = scheme_of(device), place_of(device)
    agent = doctor_agent.in_use() if is_on_interface(device) else None
    if agent:
        yield from doctor_agent.check_device(about, f"{scheme}:{place}", agent)
    # The node's interface may be out of sight, or another one than that of the same name here.
    here = not agent or (os.geteuid() == 0 and host.interface(place))
    if is_on_interface(device) and here:
        yield from _check_interface(about, place, file.values)
        if scheme == "xdp":
            yield from doctor_xdp.check(about, file.values, bool(holders), agent is not None)
    elif scheme == "dpdk":
        yield from doctor_dpdk.check(about, file.values, bool(holders))
    elif not agent:
        yield ok(about, f"device = {device}")
    yield from _check_cores(about, file.values)
    if holders:
        yield note(about, f"in use by {', '.join(f'process {pid}' for pid in holders)}")


def configuration() -> Iterator[Finding]:
    """Checks the configuration folder and each file in it."""
    folder = conf_dir()
    files = conf_files(folder)
    if not folder.is_dir():
        yield fault("configuration", f"no folder {folder}; run harp setup, or set HARP_CONF_DIR")
    elif not files:
        yield fault("configuration", f"no ztcp*.conf in {folder}; run harp setup")
    first: dict[tuple[str, str], Path] = {}
    for path in files:
        file = env.read(path)
        yield from _check_file(path, file)
        if not file.error:
            yield from _check_repeated(path, file.values, first)


def _check_repeated(
    path: Path, values: env.Values, first: dict[tuple[str, str], Path]
) -> Iterator[Finding]:
    """first: the first file of each NIC and address so far."""
    key = (place_of(values["device"][0]), values["address"][0])
    if first.setdefault(key, path) != path:
        yield note(
            path.name, f"repeats the NIC and address of {first[key].name}; remove one of them"
        )


def devices() -> Iterator[Finding]:
    """Tells which devices NCCL sees. configuration() reports files that are missing or invalid."""
    files = conf_files(conf_dir())
    if not files or any(env.read(path).error for path in files):
        return
    try:
        found = _tables.devices(conf_dir())
    except _tables.ConfigError as wrong:
        yield fault("devices", str(wrong))
        return
    names = [f"{one['name']} {one['identity']}" for one in found]
    named = "one device for all NICs" if found[0]["name"] == "HARP" else ", ".join(names)
    yield ok("devices", f"NCCL sees {named}; harp env --devices shows more")


def one_subnet_arp() -> Iterator[Finding]:
    """Checks the groups of NICs that have addresses in one subnet: whether a NIC answers ARP for
    the addresses of the others, or a strict rp_filter keeps it from answering at all."""
    files = [file.values for file in map(env.read, conf_files(conf_dir())) if not file.error]
    devices = [values["device"][0] for values in files if values["address"][0] == "kernel"]
    names = [place_of(device) for device in devices if is_on_interface(device)]
    here = {name for _, name in socket.if_nameindex()}  # others are the agent's, or missing
    for group in one_subnet.groups([name for name in names if name in here]):
        loose = [name for name in group.names if not one_subnet.effective(name, "arp_ignore")]
        if loose:
            yield fault(
                "ARP",
                f"{group.listed} are in one subnet, {group.subnet}, and the kernel answers ARP on "
                f"{' and '.join(loose)} for the addresses of all of them (arp_ignore = 0), so "
                f"peers may send frames to the wrong NIC; run harp setup, which sets it, or "
                f"{one_subnet.REMEDY}",
            )
        strict = [name for name in group.names if one_subnet.dropped_by_rp_filter(name)]
        if strict:
            yield fault(
                "ARP",
                f"{group.listed} are in one subnet, {group.subnet}, and rp_filter = 1 keeps "
                f"{' and '.join(strict)} from answering ARP; run harp setup, which sets it to "
                f"{one_subnet.LOOSE}, or route by source address (ip rule)",
            )
        if not loose and not strict:
            yield ok("ARP", f"{group.listed} are in {group.subnet}; each answers for itself")


def agent() -> Iterator[Finding]:
    """Checks the agent of this node."""
    yield from doctor_agent.check()


def local_ranks() -> Iterator[Finding]:
    """Compares the running ranks of this host."""
    yield from doctor_ranks.check()


def cpu_quota() -> Iterator[Finding]:
    """Looks for running ranks of this host that their CPU quota stops."""
    yield from doctor_cpu.check(one.pid for one in doctor_ranks.running())


# -- the process's environment


def _check_key_file(path: str) -> Iterator[Finding]:
    wrong, loose = _tables.check_key_file(path)
    if wrong:
        yield fault("environment", wrong)
    elif loose:
        yield note(
            "environment",
            f"HARP_KEY_FILE {path}: other users of this host may read or change it; "
            f"chmod 600 {path}",
        )
    else:
        yield ok("environment", f"HARP_KEY_FILE {path} holds a key")


def environment() -> Iterator[Finding]:
    """Checks for variables that turn HARP off or have no effect, and the key file."""
    if os.environ.get("HARP_DISABLE", "0") not in ("", "0"):
        yield fault("environment", "HARP_DISABLE is set: HARP declines; unset it")
    for name in env.ignored_variables():
        yield note("environment", f"{name} has no effect: only the file may set this key")
    for name, question in env.unknown_variables().items():
        yield note(
            "environment",
            f"{name} is not a variable of HARP's{question or ';'} see harp env --defaults",
        )
    if os.environ.get("HARP_KEY_FILE"):
        yield from _check_key_file(os.environ["HARP_KEY_FILE"])
    if os.environ.get("NCCL_NET", "").upper() not in ("", "HARP"):
        yield fault(
            "environment",
            f"NCCL_NET={os.environ['NCCL_NET']} keeps NCCL from HARP; unset it, or set HARP",
        )


def _wants_packet_sockets() -> bool:
    """Whether a file shares a NIC with the kernel, or there is no valid file yet."""
    files = [env.read(path) for path in conf_files(conf_dir())]
    devices = [file.values["device"][0] for file in files if not file.error]
    return not devices or any(map(is_on_interface, devices))


def privileges() -> Iterator[Finding]:
    """Checks for CAP_NET_RAW, or an agent that has it."""
    if _wants_packet_sockets() and doctor_agent.in_use():
        yield ok("privileges", "none are needed: the agent of this node opens the devices")
    elif host.may_open_packet_sockets():
        yield ok("privileges", "packet sockets may be opened (CAP_NET_RAW)")
    elif _wants_packet_sockets():
        yield fault(
            "privileges",
            "packet and xdp devices need CAP_NET_RAW; run as root, or use docker run --cap-add "
            "NET_RAW, or in a pod securityContext.capabilities.add: [NET_RAW], or run harp agent "
            "on the node",
        )


def _free_bytes(folder: Path) -> int:
    """What the user of this process may still write there."""
    found = os.statvfs(folder)
    return found.f_frsize * (found.f_bavail if os.geteuid() else found.f_bfree)


def run_folder() -> Iterator[Finding]:
    """Checks the folder of the statistics files."""
    folder = run_dir()
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        free = _free_bytes(folder)
        if free < ROOM:
            yield note(
                "run folder",
                f"{folder} has only {free >> 10} KiB of free space: a process needs up to 160 KiB "
                "for the statistics of each NIC, and 1 MiB for a trace; free some, or set "
                "HARP_RUN_DIR",
            )
        count = len(statfile.grouped(statfile.scan()))
        yield ok("run folder", f"{folder}; processes that use HARP now: {count}")
    else:
        yield note(
            "run folder",
            f"{folder} is missing or not writable: statistics go to "
            f"/dev/shm/harp-{os.geteuid()}; run harp setup",
        )


# -- the plugin


def _apis(path: Path) -> list[int]:
    """The versions of NCCL's net interface that the library exports. Raises OSError."""
    library = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    return [api for api in APIS if hasattr(library, f"ncclNetPlugin_v{api}")]


def built_plugin() -> Iterator[Finding]:
    """Checks this package's plugin."""
    try:
        path = nccl_plugin_path()
        versions = ", ".join(f"v{api}" for api in _apis(path))
    except OSError as failure:  # also for a missing file
        yield fault("plugin", str(failure))
        return
    yield ok("plugin", f"{path} loads; NCCL's interface {versions}")


def loaded_plugin() -> Iterator[Finding]:
    """Checks the plugin that NCCL loads by default."""
    if "NCCL_NET_PLUGIN" in os.environ:
        yield note(
            "NCCL",
            f"NCCL_NET_PLUGIN={os.environ['NCCL_NET_PLUGIN']} selects the plugin; harprun ignores "
            "the variable",
        )
    path, hidden = loader.find(loader.NAME), loader.find(loader.HIDDEN_NAME)
    if path is not None and loader.is_harp(path):
        yield ok("NCCL", f"loads {path}")
    elif path is not None:
        yield note("NCCL", f"loads {path}, another vendor's plugin; harprun puts HARP first")
    elif hidden is not None:
        yield note("NCCL", f"finds no plugin: {hidden} is disabled; run harp enable, or harprun")
    else:
        yield note(
            "NCCL", f"finds no {loader.NAME} in the loader's folders; start jobs with harprun"
        )


Check = Callable[[], Iterator[Finding]]

# Those of this host alone, and those that look at the processes of running jobs, too.
OF_HOST: tuple[Check, ...] = (
    environment, configuration, devices, one_subnet_arp, agent, privileges, run_folder,
    built_plugin, loaded_plugin,
)  # fmt: skip
CHECKS = (*OF_HOST, local_ranks, cpu_quota)


def all_findings(checks: Sequence[Check] = CHECKS) -> list[Finding]:
    """Runs checks of this host. A check that cannot run is a fault itself."""
    findings: list[Finding] = []
    for check in checks:
        try:
            findings += check()
        except (host.HostError, StepError, OSError) as failure:
            findings.append(fault(check.__name__.replace("_", " "), str(failure)))
    return findings


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def doctor(as_json: bool) -> None:
    """Find the faults that keep HARP from working here; one line a finding.

    ok: correct. note: works, but perhaps not as expected. fault: jobs will not use
    HARP. Exit 1 if there is a fault.
    """
    findings = all_findings()
    if as_json:
        click.echo(
            json.dumps(
                {"schema": "harp.doctor/1", "findings": [asdict(one) for one in findings]}, indent=1
            )
        )
    else:
        for one in findings:
            click.echo(f"{one.level:<6}{one.about}: {one.text}")
    if any(one.level == "fault" for one in findings):
        raise click.exceptions.Exit(1)
