# SPDX-License-Identifier: Apache-2.0
"""The agent's loop: it accepts clients, reads requests, and runs harp-agent-open for them.

One thread. A client that stalls holds a descriptor and nothing else: no call here waits for a
client, or for a name service. Each user has a bounded number of connections, and all users that the
agent does not serve share one such number. One more connection of each user may ask for the status
only, so that its jobs cannot hide it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import time
import weakref
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from harp.agent import kernel_ports, privileges, reply
from harp.agent.complaints import Complaints
from harp.agent.grants import Exhausted, Grant, Grants, Owner, Passed, start_time
from harp.agent.peer import Peer
from harp.agent.policy import Denied, Policy
from harp.agent.request import LIMIT, VERSION, Device, Listen, Open, Query, RequestError, parse

LOG = logging.getLogger("harp.agent")
OPENERS = 4  # that run at a time
OPEN_S = 10.0
SILENCE_S = 10.0  # longest silence of a client without a grant
SWEEP_S = 5.0  # between two looks for grants that are over
SETTLE_S = 0.2  # until the kernel has closed the sockets of a process that ends
BACKLOG = 256
UNSERVED = -1  # stands for all users that the agent does not serve
DONE, REFUSED, GONE, OCCUPIED = 0, 1, 3, 4  # exit statuses of harp-agent-open
# What the agent counts from its start on; metrics.py has a sentence for each.
COUNTS = (
    "requests",
    "granted",
    "released",
    "denied",
    "exhausted",
    "malformed",
    "refused",
    "failed",
)


@dataclass(frozen=True)
class Ports:
    """The local ports that jobs may get on the kernel's address, in blocks of `block`."""

    first: int = 61000
    last: int = 65535
    block: int = 512

    def __contains__(self, ports: tuple[int, int]) -> bool:
        return self.first <= ports[0] <= ports[1] <= self.last

    def blocks(self) -> list[tuple[int, int]]:
        """All blocks. The last one may be shorter."""
        starts = range(self.first, self.last + 1, self.block)
        return [(first, min(first + self.block - 1, self.last)) for first in starts]


@dataclass
class Client:
    """A connection. `owner` is the process that made it, `gids` are its groups. `spare`: it may
    only ask for the status, once; one of a user that is not served is denied, once."""

    connection: socket.socket
    owner: Owner
    gids: tuple[int, ...]
    spare: bool = False
    has_grant: bool = False


def _read_passed(listed: bytes) -> Passed:
    """What harp-agent-open has printed: "socket INODE", "program ID" and "address A.B.C.D". An
    opener of another release may print more."""
    pairs = [line.split() for line in listed.decode(errors="replace").splitlines()]
    sockets = tuple(int(pair[1]) for pair in pairs if pair[:1] == ["socket"])
    programs = [int(pair[1]) for pair in pairs if pair[:1] == ["program"]]
    addresses = [pair[1] for pair in pairs if pair[:1] == ["address"]]
    return Passed(sockets, programs[0] if programs else 0, addresses[0] if addresses else "")


def _index(interface: str) -> int:
    """The interface's number, which it keeps when it gets another name; 0: there is none."""
    try:
        return socket.if_nametoindex(interface)
    except OSError:
        return 0


def _cannot(failed: OSError) -> str:
    return f"the agent cannot serve the request: {failed.strerror or failed}; see its log"


class Agent:
    """Serves a listening socket of type SOCK_SEQPACKET.

    opener: the path of harp-agent-open. connections: most connections of a user.
    """

    def __init__(
        self,
        policy: Policy,
        grants: Grants,
        opener: Path,
        ports: Optional[Ports] = None,
        connections: int = 128,
    ):
        self.policy = policy
        self.grants = grants
        self.opener = opener
        self.ports = ports or Ports()
        self.connections = connections
        self.started = time.time()
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        self._connected: Counter[int] = Counter()
        self._openers = asyncio.Semaphore(OPENERS)
        self._opening = asyncio.Lock()
        self._turns: weakref.WeakValueDictionary[int, asyncio.Lock] = weakref.WeakValueDictionary()
        self._ended = asyncio.Event()  # a client with a grant has gone
        self._complaints = Complaints()
        self._tasks: set[asyncio.Task[None]] = set()

    # -- the loop

    async def serve(self, listener: socket.socket) -> None:
        """Accepts clients until it is cancelled."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        self._start(self._sweep())
        try:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError as full:  # out of descriptors: those of others may become free
                    LOG.warning("cannot accept a client: %s", full.strerror)
                    await asyncio.sleep(0.2)
                    continue
                self._start(self._attend(connection))
        finally:
            while self._tasks:  # wait_for of Python before 3.12 may swallow a cancellation
                for task in self._tasks:
                    task.cancel()
                await asyncio.wait(self._tasks, timeout=0.1)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _sweep(self) -> None:
        """Takes back grants that are over, whether or not an agent ran when they ended."""
        while True:
            self._release()
            self._complaints.flush()
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self._ended.wait(), SWEEP_S)
                self._ended.clear()
                await asyncio.sleep(SETTLE_S)

    def _release(self) -> None:
        try:
            self.counts["released"] += self.grants.drop_gone()
        except OSError as failed:  # no space for the table: the next look may find some
            LOG.error("cannot take grants back: %s", failed)

    # -- one client

    async def _attend(self, connection: socket.socket) -> None:
        with connection:
            connection.setblocking(False)
            peer = Peer.of(connection)
            # One process may have many user numbers, but not many that the agent serves.
            served = self.policy.permits(peer.uid, peer.gids)
            payer = peer.uid if served else UNSERVED
            others = self._connected[payer]
            if others > self.connections or (others == self.connections and not served):
                self.counts["refused"] += 1
                self._send(connection, self._too_many(payer))
                return
            owner = Owner(peer.pid, start_time(peer.pid) or 0, peer.uid)
            spare = not served or others == self.connections
            client = Client(connection, owner, peer.gids, spare)
            self._connected[payer] += 1
            try:
                await self._converse(client)
            except (ConnectionError, asyncio.TimeoutError, TimeoutError):
                pass
            except OSError as failed:
                self.counts["failed"] += 1
                self._complaints.add(peer.uid, f"pid {peer.pid}: cannot serve it: {failed}")
                self._send(connection, reply.error(failed.errno or errno.EIO, _cannot(failed)))
            finally:
                self._connected[payer] -= 1
                if not self._connected[payer]:
                    del self._connected[payer]
                if client.has_grant:
                    self._ended.set()

    def _too_many(self, payer: int) -> bytes:
        served = payer != UNSERVED
        who = f"uid {payer} has" if served else "users that the agent does not serve have"
        return reply.error(errno.EUSERS, f"{who} {self.connections} connections")

    async def _converse(self, client: Client) -> None:
        loop = asyncio.get_running_loop()
        timeout: Optional[float] = SILENCE_S
        while True:
            data = await asyncio.wait_for(
                loop.sock_recv(client.connection, LIMIT + 1), timeout=timeout
            )
            if not data:
                return
            answer = await self._answer(client, data)
            if answer is not None and not self._send(client.connection, answer):
                return
            if client.spare:
                return
            timeout = None if client.has_grant else SILENCE_S

    @staticmethod
    def _send(connection: socket.socket, data: bytes) -> bool:
        """false: the client does not read, or is gone."""
        try:
            connection.send(data, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    async def _answer(self, client: Client, data: bytes) -> Optional[bytes]:
        """The reply to a request; None: harp-agent-open has sent it."""
        self.counts["requests"] += 1
        try:
            request = parse(data)
            self.policy.check_client(client.owner.uid, client.gids)
            if isinstance(request, Query):
                return reply.text(self.status() if request.what == "status" else self.hello())
            if client.spare:
                self.counts["refused"] += 1
                return self._too_many(client.owner.uid)
            if isinstance(request, Open):
                return await self._open(client, request)
            return await self._listen(client, request)
        except RequestError as wrong:
            self.counts["malformed"] += 1
            return reply.error(errno.EINVAL, f"the agent cannot read the request: {wrong}")
        except Denied as denied:
            self.counts["denied"] += 1
            self._complaints.add(client.owner.uid, f"denied to pid {client.owner.pid}: {denied}")
            return reply.error(errno.EACCES, str(denied))
        except Exhausted as none_left:
            self.counts["exhausted"] += 1
            self._complaints.add(client.owner.uid, str(none_left))
            return reply.error(errno.EADDRINUSE, str(none_left))

    # -- open

    async def _open(self, client: Client, request: Open) -> Optional[bytes]:
        owner = client.owner
        if not owner.pid or not owner.started:
            raise Denied(
                "the agent does not see the client's process; run the agent in the host's pid "
                "namespace (hostPID: true)"
            )
        self.policy.check_device(request.device)
        self.policy.check_address(request.device, request.address, request.mac)
        # One request of each user waits for the lock, so that no user keeps the others waiting.
        turn = self._turns.setdefault(owner.uid, asyncio.Lock())
        async with turn, self._opening:  # so that two requests do not get the same block
            self._release()
            busy = self._answer_if_busy(owner, request.device)
            if busy:
                return busy
            self.policy.check_quota(owner.uid, self.grants.used_by(owner.uid))
            for ports in self._candidates(owner, request):
                if await self._grant(client, request, ports) != OCCUPIED:
                    return None
        raise Exhausted(
            f"{request.device}: no local ports are left for this job: each block of "
            f"{self.ports.block} in {self.ports.first}-{self.ports.last} has a port in use; end "
            "other jobs, or start harp agent with more --ports or a smaller --block"
        )

    def _answer_if_busy(self, owner: Owner, device: Device) -> Optional[bytes]:
        """The reply if another process has the AF_XDP sockets of the interface; else None. Each
        further process of a host asks for them first. harp-agent-open would try for half a
        second."""
        if device.scheme != "xdp":
            return None
        held = self.grants.with_program(device.interface, besides=owner)
        if not held:
            return None
        return reply.error(
            errno.EBUSY,
            f"{device}: pid {held.owner.pid} has the AF_XDP sockets of this interface; end it, "
            f"remove the options of {device}, or use packet:{device.interface}",
        )

    def _candidates(self, owner: Owner, request: Open) -> list[tuple[int, int]]:
        """The ports to try. On an address of its own a job has all, or those that it names."""
        wanted = request.ports
        if request.address != "kernel":
            self._check_holder(request)
            return [wanted]
        if wanted == (0, 0):
            blocks = self.ports.blocks()
        elif wanted in self.ports:
            blocks = [wanted]
        else:
            raise Denied(
                f"{request.device}: tcp_ports = {wanted[0]}-{wanted[1]} is outside of "
                f"the agent's {self.ports.first}-{self.ports.last}; remove tcp_ports, or start "
                f"harp agent with --ports {wanted[0]}-{wanted[1]}"
            )
        self._check_port_quota(owner.uid, request.device, blocks)
        interface = request.device.interface
        return [
            block
            for block in self._kept_by_kernel(request.device, blocks)
            # A later request names its grant by the interface's first name and the ports.
            if self.grants.is_free(interface, *block)
            and not self.grants.find(owner, interface, block)
        ]

    def _check_port_quota(self, uid: int, device: Device, blocks: list[tuple[int, int]]) -> None:
        used = self.grants.ports_used_by(uid, device.interface)
        wanted = max(last - first + 1 for first, last in blocks)
        self.policy.check_port_quota(device, uid, used, wanted)

    def _kept_by_kernel(
        self, device: Device, blocks: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """The blocks of which the kernel gives no port to other programs. An operator may have
        changed its range since the agent's start. Raises Exhausted if there are none."""
        kept = [block for block in blocks if kernel_ports.given_away(*block) is None]
        if not kept:
            first, last = self.ports.first, self.ports.last
            given = kernel_ports.given_away(first, last)
            raise Exhausted(f"{device}: {kernel_ports.remedy(given or first, first, last)}")
        return kept

    def _check_holder(self, request: Open) -> None:
        held = self.grants.holder(request.address)
        if held:
            raise Exhausted(
                f"{request.device}: pid {held.owner.pid} has the address "
                f"{request.address} already; give this job another one"
            )

    async def _grant(self, client: Client, request: Open, ports: tuple[int, int]) -> int:
        """Opens the sockets and keeps the grant. The table has the grant before the client has the
        sockets, so that an agent that is killed in between gives the ports to nobody else. An agent
        that ends now keeps it, too. Returns harp-agent-open's exit status."""
        own = request.address != "kernel"
        block = (0, 0) if own else ports
        interface = request.device.interface
        index = _index(interface)
        grant = Grant(interface, request.address, *block, client.owner, index=index)
        self.grants.add(grant)
        try:
            status, passed = await self._run_open(client, request, ports)
        except TimeoutError:  # the client may have the sockets
            raise
        except OSError:
            self.grants.drop(grant)
            raise
        if status != DONE:
            self.grants.drop(grant)
            return status
        self.grants.confirm(grant, passed)
        client.has_grant = True
        self.counts["granted"] += 1
        LOG.info(
            "pid %d uid %d: %s, address %s, ports %d-%d",
            client.owner.pid,
            client.owner.uid,
            request.device,
            request.address,
            *block,
        )
        return status

    async def _run_open(
        self, client: Client, request: Open, ports: tuple[int, int]
    ) -> tuple[int, Passed]:
        numbers = (request.mtu, *ports)
        device = request.device
        args = [device.scheme, device.interface + device.options, str(request.queues)]
        args += [request.address, request.mac or "-", *map(str, numbers)]
        args += ["vnet"] if request.vnet and device.scheme == "xdp" else []
        return await self._run(client, *args)

    # -- listen

    async def _listen(self, client: Client, request: Listen) -> Optional[bytes]:
        grant = self.grants.find(client.owner, request.device.interface, request.grant)
        interface = grant.present_name() if grant and grant.first else None
        if not grant or not interface:
            raise Denied(
                f"{request.device}: pid {client.owner.pid} has no ports "
                f"{request.grant[0]}-{request.grant[1]}; open the device first"
            )
        client.has_grant = True  # also if it has connected again
        numbers = (request.first, request.count, grant.last)
        address = [grant.kernel_address] if grant.kernel_address else []
        await self._run(client, "listen", interface, *map(str, numbers), *address)
        return None

    # -- harp-agent-open

    async def _run(self, client: Client, *args: str) -> tuple[int, Passed]:
        """Runs harp-agent-open for a client. Returns its exit status, and what the client got.
        TimeoutError: the client may have it."""
        async with self._openers:
            process = await asyncio.create_subprocess_exec(
                str(self.opener),
                *args,
                stdin=client.connection.fileno(),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                listed, said = await asyncio.wait_for(process.communicate(), OPEN_S)
            except (asyncio.TimeoutError, TimeoutError):
                LOG.error("%s %s: took longer than %g s", self.opener.name, args[0], OPEN_S)
                raise TimeoutError from None
            finally:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
        status = process.returncode or 0
        if status not in (DONE, OCCUPIED):
            self.counts["failed"] += 1
            line = said.decode(errors="replace").strip()
            self._complaints.add(client.owner.uid, f"pid {client.owner.pid}: {line}")
        if status not in (DONE, REFUSED, OCCUPIED):
            raise ConnectionAbortedError
        return status, _read_passed(listed)

    # -- queries

    def hello(self) -> dict[str, object]:
        """What `harp doctor` wants to know before a job runs."""
        return {
            "may": True,
            "version": VERSION,
            "kernel": os.uname().release,
            "devices": list(self.policy.devices),
            "may_lock_memory": privileges.may_lock_memory(),
        }

    def status(self) -> dict[str, object]:
        """What `harp agent status` shows."""
        return {
            "version": VERSION,
            "pid": os.getpid(),
            "started": self.started,
            "ports": [self.ports.first, self.ports.last, self.ports.block],
            "allow": list(self.policy.allow),
            "devices": list(self.policy.devices),
            "connections": sum(self._connected.values()),
            "counts": dict(self.counts),
            "grants": [
                {
                    "interface": grant.present_name() or grant.interface,
                    "address": grant.address,
                    "ports": [grant.first, grant.last],
                    "pid": grant.owner.pid,
                    "uid": grant.owner.uid,
                }
                for grant in list(self.grants)[:64]  # a reply is one packet
            ],
            "granted": len(self.grants),
        }
