# SPDX-License-Identifier: Apache-2.0
"""`harp agent`: opens what takes privileges on this node, for jobs that have none."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import click

from harp import paths
from harp.agent import privileges, reply
from harp.agent.grants import Grants
from harp.agent.policy import Policy
from harp.agent.request import LIMIT, VERSION
from harp.agent.server import BACKLOG, Agent, Ports
from harp.cli.main import HELP

SOCKET = Path("/run/harp/agent.sock")
KERNEL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
KERNEL_RESERVED = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")
PATIENCE_S = 5.0


class _PortRange(click.ParamType):
    name = "first-last"

    def convert(
        self, value: Any, param: Optional[click.Parameter], ctx: Optional[click.Context]
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        first, dash, last = str(value).partition("-")
        if not dash or not first.isdecimal() or not last.isdecimal():
            self.fail(f"{value}: give FIRST-LAST", param, ctx)
        ports = int(first), int(last)
        if not 1024 <= ports[0] <= ports[1] <= 65535:
            self.fail(f"{value}: give two ports from 1024 to 65535, in order", param, ctx)
        return ports


class _Network(click.ParamType):
    name = "cidr"

    def convert(
        self, value: Any, param: Optional[click.Parameter], ctx: Optional[click.Context]
    ) -> ipaddress.IPv4Network:
        try:
            return ipaddress.IPv4Network(value)
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)


# -- the daemon


def _reserved() -> set[int]:
    """The ports of ip_local_reserved_ports."""
    found: set[int] = set()
    for part in KERNEL_RESERVED.read_text().strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found


def _check_ports(ports: Ports) -> None:
    """Fails if the kernel may give a port of the range to another program: a job would see the
    frames of that program's connection, and reset it."""
    first, last = map(int, KERNEL_RANGE.read_text().split())
    reserved = _reserved()
    given = [
        port
        for port in range(max(first, ports.first), min(last, ports.last) + 1)
        if port not in reserved
    ]
    if given:
        raise click.ClickException(
            f"the kernel gives port {given[0]} to any program (ip_local_port_range is "
            f"{first}-{last}); choose other --ports, or reserve these: sysctl "
            f"net.ipv4.ip_local_reserved_ports={ports.first}-{ports.last}"
        )


def _activated() -> Optional[socket.socket]:
    """The listening socket that systemd passes (sd_listen_fds(3)); None: it has passed none."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        return None
    return socket.socket(fileno=3)


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(PATIENCE_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # its queue is full
            return True
    return True


def _listen(path: Path) -> socket.socket:
    """Listens at a path. Any user may connect: the agent looks at who it is."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        if path.is_socket() and not _is_served(path):
            path.unlink()
        listener.bind(str(path))
        os.chmod(path, 0o666)
        listener.listen(BACKLOG)
    except OSError as failed:
        listener.close()
        hint = (
            "another agent serves it; end that one first"
            if failed.errno == errno.EADDRINUSE
            else "run harp agent as root, or name another --socket"
        )
        raise click.ClickException(f"{path}: {failed.strerror}; {hint}") from None
    return listener


async def _serve(agent: Agent, listener: socket.socket) -> None:
    work = asyncio.ensure_future(agent.serve(listener))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        pass


def _run(socket_path: Path, policy: Policy, ports: Ports) -> None:
    lacking = privileges.missing()
    if lacking:
        raise click.ClickException(
            f"the agent lacks {', '.join('CAP_' + name.upper() for name in lacking)}; run it as "
            "root, or by its systemd unit"
        )
    _check_ports(ports)
    try:
        grants = Grants(socket_path.with_suffix(".grants"))
        opener = paths.agent_opener()
    except (ValueError, FileNotFoundError) as wrong:
        raise click.ClickException(str(wrong)) from None
    passed = _activated()
    listener = passed or _listen(socket_path)
    logging.info("harp agent: serves %s, protocol %d, %d grants", socket_path, VERSION, len(grants))
    try:
        asyncio.run(_serve(Agent(policy, grants, opener, ports), listener))
    finally:
        if not passed:
            socket_path.unlink(missing_ok=True)
    logging.info("harp agent: ends; jobs keep their sockets")


@click.group(invoke_without_command=True, context_settings=HELP)
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    default=SOCKET,
    show_default=True,
    help="Where to listen.",
)
@click.option(
    "--allow", multiple=True, metavar="USER|@GROUP", help="Who may ask, besides root; repeatable."
)
@click.option("--device", multiple=True, metavar="IFACE", help="Serve only these; repeatable.")
@click.option(
    "--address",
    multiple=True,
    type=_Network(),
    help="Networks in which jobs may have addresses of their own; repeatable.",
)
@click.option(
    "--ports",
    type=_PortRange(),
    default=(61000, 65535),
    show_default="61000-65535",
    help="Local ports for jobs on the kernel's address.",
)
@click.option(
    "--block",
    type=click.IntRange(16, 4096),
    default=512,
    show_default=True,
    help="Local ports for each device that a process opens.",
)
@click.option(
    "--quota",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Devices that a user's processes may have open at a time.",
)
@click.option(
    "--user",
    default="nobody",
    show_default=True,
    help="Run as this user, with three capabilities only, if started as root.",
)
@click.pass_context
def agent(
    context: click.Context,
    socket_path: Path,
    allow: Sequence[str],
    device: Sequence[str],
    address: Sequence[ipaddress.IPv4Network],
    ports: tuple[int, int],
    block: int,
    quota: int,
    user: str,
) -> None:
    """Opens packet sockets of this node for jobs that have no privilege, also in pods with a
    network namespace of their own. Runs in the foreground and logs to standard error."""
    if context.invoked_subcommand:
        return
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    if os.geteuid() == 0 and (user != "root" or privileges.has_more()):
        try:
            privileges.prepare_folder(socket_path.parent, user)
            privileges.become(user, [sys.executable, "-m", "harp", *sys.argv[1:]])
        except (privileges.PrivilegeError, KeyError, OSError) as failed:
            raise click.ClickException(str(failed)) from None
    _run(socket_path, Policy(allow, device, address, quota), Ports(*ports, block))


# -- status


def ask(path: Path, what: str) -> Any:
    """The agent's answer to a query: "status" or "hello". Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(str(path))
        request = json.dumps({"version": VERSION, "op": what}).encode()
        assert len(request) <= LIMIT
        connection.send(request)
        answer = connection.recv(65536)
    if not answer:
        raise ConnectionResetError(errno.ECONNRESET, "the agent closed the connection")
    refused = reply.read_error(answer)
    if refused:
        raise OSError(*refused)
    return json.loads(answer)


@agent.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def status(context: click.Context, as_json: bool) -> None:
    """Shows what the agent has granted to which process."""
    assert context.parent
    path: Path = context.parent.params["socket_path"]
    try:
        state = ask(path, "status")
    except OSError as failed:
        raise click.ClickException(
            f"{path}: {failed.strerror or failed}; is harp agent running on this node?"
        ) from None
    if as_json:
        click.echo(json.dumps(state, indent=2))
        return
    first, last, block = state["ports"]
    click.echo(f"agent pid {state['pid']}, protocol {state['version']}, {path}")
    click.echo(f"  serves: {', '.join(state['allow']) or 'root only'}")
    click.echo(f"  devices: {', '.join(state['devices']) or 'all'}")
    click.echo(f"  ports {first}-{last}, {block} for each device of a process")
    counts = " ".join(f"{name}:{count}" for name, count in sorted(state["counts"].items()))
    click.echo(f"  connections:{state['connections']} granted now:{state['granted']} {counts}")
    for grant in state["grants"]:
        low, high = grant["ports"]
        where = f"ports {low}-{high}" if low else "all ports"
        click.echo(
            f"  pid {grant['pid']} uid {grant['uid']}: packet:{grant['interface']}, address "
            f"{grant['address']}, {where}"
        )
