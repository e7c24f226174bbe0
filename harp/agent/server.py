# SPDX-License-Identifier: Apache-2.0
"""The agent's loop: it accepts clients, reads requests, and runs harp-agent-open for them.

One thread. A client that stalls holds a descriptor and nothing else: no call here waits for a
client. Each user has a bounded number of connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from harp.agent import reply
from harp.agent.grants import Exhausted, Grant, Grants, Owner, start_time
from harp.agent.policy import Denied, Policy
from harp.agent.request import LIMIT, VERSION, Listen, Open, Query, RequestError, parse

LOG = logging.getLogger("harp.agent")
OPENERS = 4  # that run at a time
OPEN_S = 10.0
SILENCE_S = 10.0  # until a client must have sent its first request
SWEEP_S = 5.0  # between two looks for dead owners
BACKLOG = 256
DONE, REFUSED, GONE, OCCUPIED = 0, 1, 3, 4  # exit statuses of harp-agent-open


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
    """A connection. `owner` is the process that made it (SO_PEERCRED)."""

    connection: socket.socket
    owner: Owner
    gid: int
    grants: list[Grant] = field(default_factory=list)


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
        self.counts: Counter[str] = Counter()
        self._connected: Counter[int] = Counter()
        self._openers = asyncio.Semaphore(OPENERS)
        self._opening = asyncio.Lock()
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
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _sweep(self) -> None:
        """Takes back the grants of processes that ended while no agent ran."""
        while True:
            self.counts["released"] += self.grants.drop_dead()
            await asyncio.sleep(SWEEP_S)

    # -- one client

    async def _attend(self, connection: socket.socket) -> None:
        with connection:
            connection.setblocking(False)
            pid, uid, gid = struct.unpack(
                "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )
            if self._connected[uid] >= self.connections:
                self.counts["refused"] += 1
                self._send(
                    connection,
                    reply.error(errno.EUSERS, f"uid {uid} has {self.connections} connections"),
                )
                return
            self._connected[uid] += 1
            client = Client(connection, Owner(pid, start_time(pid) or 0, uid), gid)
            try:
                await self._converse(client)
            except (ConnectionError, asyncio.TimeoutError, TimeoutError):
                pass
            finally:
                self._connected[uid] -= 1
                if not self._connected[uid]:
                    del self._connected[uid]
                self.counts["released"] += len(client.grants)
                self.grants.drop(client.grants)

    async def _converse(self, client: Client) -> None:
        loop = asyncio.get_running_loop()
        patience: Optional[float] = SILENCE_S
        while True:
            data = await asyncio.wait_for(
                loop.sock_recv(client.connection, LIMIT + 1), timeout=patience
            )
            if not data:
                return
            answer = await self._answer(client, data)
            if answer is not None and not self._send(client.connection, answer):
                return
            patience = None if client.grants else SILENCE_S

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
            self.policy.check_client(client.owner.uid, client.gid)
            if isinstance(request, Query):
                return reply.text(self.status() if request.what == "status" else {"may": True})
            if isinstance(request, Open):
                return await self._open(client, request)
            return await self._listen(client, request)
        except RequestError as wrong:
            self.counts["malformed"] += 1
            return reply.error(errno.EINVAL, f"the agent cannot read the request: {wrong}")
        except Denied as denied:
            self.counts["denied"] += 1
            LOG.warning("denied to pid %d: %s", client.owner.pid, denied)
            return reply.error(errno.EACCES, str(denied))
        except Exhausted as none_left:
            self.counts["exhausted"] += 1
            LOG.warning("%s", none_left)
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
        async with self._opening:  # so that two requests do not get the same block
            self.policy.check_quota(owner.uid, self.grants.used_by(owner.uid))
            if request.address != "kernel":
                await self._open_own(client, request)
                return None
            for ports in self._candidates(request):
                status = await self._run_open(client, request, ports)
                if status != OCCUPIED:
                    self._note(client, request, ports, status)
                    return None
        raise Exhausted(
            f"{request.device}: no local ports are left for this job: each block of "
            f"{self.ports.block} in {self.ports.first}-{self.ports.last} has a port in use; end "
            "other jobs, or start harp agent with more --ports or a smaller --block"
        )

    def _candidates(self, request: Open) -> list[tuple[int, int]]:
        wanted = request.ports
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
        return [b for b in blocks if self.grants.is_free(request.device.interface, *b)]

    async def _open_own(self, client: Client, request: Open) -> None:
        held = self.grants.holder(request.address)
        if held:
            raise Exhausted(
                f"{request.device}: pid {held.owner.pid} has the address "
                f"{request.address} already; give this job another one"
            )
        status = await self._run_open(client, request, request.ports)
        self._note(client, request, (0, 0), status)

    def _note(self, client: Client, request: Open, ports: tuple[int, int], status: int) -> None:
        if status != DONE:
            return
        grant = Grant(request.device.interface, request.address, *ports, client.owner)
        client.grants.append(grant)
        self.grants.add(grant)
        self.counts["granted"] += 1
        LOG.info(
            "pid %d uid %d: %s, address %s, ports %d-%d",
            client.owner.pid,
            client.owner.uid,
            request.device,
            request.address,
            *ports,
        )

    async def _run_open(self, client: Client, request: Open, ports: tuple[int, int]) -> int:
        numbers = (request.mtu, *ports)
        device = request.device
        words = [device.scheme, device.interface + device.options, str(request.queues)]
        words += [request.address, request.mac or "-", *map(str, numbers)]
        return await self._run(client, *words)

    # -- listen

    async def _listen(self, client: Client, request: Listen) -> Optional[bytes]:
        grant = self.grants.find(client.owner, request.device.interface, request.grant)
        if not grant or not grant.first:
            raise Denied(
                f"{request.device}: pid {client.owner.pid} has no ports "
                f"{request.grant[0]}-{request.grant[1]}; open the device first"
            )
        if grant not in client.grants:  # the client has connected again
            client.grants.append(grant)
        numbers = (request.first, request.count, grant.last)
        await self._run(client, "listen", request.device.interface, *map(str, numbers))
        return None

    # -- harp-agent-open

    async def _run(self, client: Client, *words: str) -> int:
        """Runs harp-agent-open for a client. Returns its exit status."""
        async with self._openers:
            process = await asyncio.create_subprocess_exec(
                str(self.opener),
                *words,
                stdin=client.connection.fileno(),
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                _, said = await asyncio.wait_for(process.communicate(), OPEN_S)
            except (asyncio.TimeoutError, TimeoutError):
                LOG.error("%s %s: took longer than %g s", self.opener.name, words[0], OPEN_S)
                raise ConnectionAbortedError from None
            finally:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
        status = process.returncode or 0
        if status not in (DONE, OCCUPIED):
            self.counts["failed"] += 1
            LOG.warning("pid %d: %s", client.owner.pid, said.decode(errors="replace").strip())
        if status not in (DONE, REFUSED, OCCUPIED):
            raise ConnectionAbortedError
        return status

    # -- status

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
                    "interface": grant.interface,
                    "address": grant.address,
                    "ports": [grant.first, grant.last],
                    "pid": grant.owner.pid,
                    "uid": grant.owner.uid,
                }
                for grant in list(self.grants)[:64]  # a reply is one packet
            ],
            "granted": len(self.grants),
        }
