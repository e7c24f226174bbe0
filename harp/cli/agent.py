# SPDX-License-Identifier: Apache-2.0
"""`harp agent`: opens what takes privileges on this node, for jobs that have none."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
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
from harp.agent import kernel_ports, privileges, service
from harp.agent.accounts import UnknownName
from harp.agent.grants import Grants
from harp.agent.policy import Policy
from harp.agent.query import SOCKET, TIMEOUT_S
from harp.agent.request import VERSION
from harp.agent.server import BACKLOG, Agent, Ports
from harp.cli.agent_status import status
from harp.cli.main import HELP
from harp.cli.printed_files import OF_AGENT


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


class _Lacking(click.ClickException):
    """Capabilities are missing. A restart does not help: the systemd unit makes none then."""

    exit_code = os.EX_CONFIG


def _check_capabilities(lacking: Sequence[str]) -> None:
    if lacking:
        names = ", ".join("CAP_" + name.upper() for name in lacking)
        raise _Lacking(
            f"the agent lacks {names}; run it as root or by its systemd unit, and in a container "
            "add the capabilities that `harp agent file daemonset.yaml` lists"
        )


def _check_ports(ports: Ports) -> None:
    """Fails if the kernel may give a port of the range to another program."""
    given = kernel_ports.given_away(ports.first, ports.last)
    if given is not None:
        raise click.ClickException(kernel_ports.remedy(given, ports.first, ports.last))


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(TIMEOUT_S)
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


async def _serve(agent: Agent, listener: socket.socket, begins: list[str]) -> None:
    """Serves until SIGTERM or SIGINT. begins: its first log lines. A signal may follow them
    at once."""
    work = asyncio.ensure_future(agent.serve(listener))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    for line in begins:
        logging.info("harp agent: %s", line)
    service.notify("READY=1")
    try:
        await work
    except asyncio.CancelledError:
        service.notify("STOPPING=1")


def _run(socket_path: Path, policy: Policy, ports: Ports) -> None:
    _check_capabilities(privileges.missing_capabilities())
    _check_ports(ports)
    try:
        grants = Grants(socket_path.with_suffix(".grants"))
        opener = paths.agent_opener()
        passed = service.passed_socket()
    except (ValueError, OSError, service.ActivationError) as wrong:
        raise click.ClickException(str(wrong)) from None
    listener = passed or _listen(socket_path)
    begins = [f"serves {socket_path}, protocol {VERSION}, {len(grants)} grants"]
    if not policy.allow:
        begins.append("serves root only; name users and groups with --allow")
    try:
        asyncio.run(_serve(Agent(policy, grants, opener, ports), listener, begins))
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
    "--port-quota",
    type=click.IntRange(16),
    default=4096,
    show_default=True,
    help="Local ports that a user's processes may have on one interface at a time.",
)
@click.option(
    "--user",
    default="harp",
    show_default=True,
    help="Run as this user, with three capabilities only, if started as root. Nothing else may run "
    "as it.",
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
    port_quota: int,
    user: str,
) -> None:
    """Open packet and xdp devices of this node for jobs that have no privilege, also in pods with
    a network namespace of their own. Run in the foreground, and log to standard error."""
    if context.invoked_subcommand:
        return
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        policy = Policy(allow, device, address, quota, port_quota)
        if os.geteuid() == 0 and (
            user not in ("root", "0") or privileges.has_needless_capabilities()
        ):
            found = privileges.User.find(user)
            _check_capabilities(privileges.missing_to_change_user())
            privileges.prepare_folder(socket_path.parent, found)
            privileges.become(found, [sys.executable, "-m", "harp", *sys.argv[1:]])
    except (UnknownName, privileges.PrivilegeError, OSError) as failed:
        raise click.ClickException(str(failed)) from None
    _run(socket_path, policy, Ports(*ports, block))


agent.add_command(status)
agent.add_command(
    OF_AGENT.command(
        "Print a file that runs the agent as a service, or that restricts what jobs may send."
    )
)
