# SPDX-License-Identifier: Apache-2.0
"""The agent's loop in this process, with programs in the place of harp-agent-open that fail."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Optional

import pytest
from agents import children_named
from raw_client import opening, user

from harp.agent import reply, server
from harp.agent.grants import Grants, Passed
from harp.agent.policy import Policy
from harp.agent.server import Agent

TIMEOUT_S = 10


def opener(folder: Path, *lines: str) -> Path:
    """A program in the place of harp-agent-open."""
    path = folder / "stub-agent-open"
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


class Ends:
    """A client's end of a connection to an agent in the same loop."""

    def __init__(self, path: Path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        self.socket.connect(str(path))

    async def ask(self, members: Any) -> bytes:
        loop = asyncio.get_running_loop()
        self.socket.send(json.dumps(members).encode())
        return await asyncio.wait_for(loop.sock_recv(self.socket, 70000), TIMEOUT_S)

    async def error(self, members: Any) -> tuple[int, str]:
        refused = reply.read_error(await self.ask(members))
        assert refused
        return refused


def with_agent(
    folder: Path, program: Path, talk: Callable[[Agent, Ends], Awaitable[None]]
) -> Grants:
    """Serves while `talk` runs with a client. Returns the table of grants."""
    grants = Grants(folder / "table")
    path = folder / "agent.sock"

    async def run() -> None:
        agent = Agent(Policy(), grants, program)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            listener.listen(8)
            serving = asyncio.ensure_future(agent.serve(listener))
            client = Ends(path)
            try:
                await talk(agent, client)
            finally:
                serving.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait_for(serving, TIMEOUT_S)
                client.socket.close()

    asyncio.run(run())
    return grants


async def until(what: Callable[[], Any]) -> None:
    for _ in range(TIMEOUT_S * 100):
        if what():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("never")


def test_table_has_grant_before_client_has_sockets(tmp_path: Path) -> None:
    """The agent may end in between. The next one must not give the ports to others."""

    async def talk(agent: Agent, client: Ends) -> None:
        client.socket.send(json.dumps(opening()).encode())
        await until(lambda: children_named("sleep"))
        assert [grant.first for grant in Grants(tmp_path / "table")] == [61000]

    with_agent(tmp_path, opener(tmp_path, "exec sleep 30"), talk)
    assert [grant.first for grant in Grants(tmp_path / "table")] == [61000]
    assert not children_named("sleep")


def test_refused_open_leaves_no_grant(tmp_path: Path) -> None:
    async def talk(agent: Agent, client: Ends) -> None:
        for _ in range(3):
            client.socket.send(json.dumps(opening()).encode())
        await until(lambda: agent.counts["failed"] == 3 and not len(agent.grants))

    program = opener(tmp_path, "echo 'packet:eth0: no such interface' >&2", "exit 1")
    assert not len(with_agent(tmp_path, program, talk))


@pytest.mark.parametrize("line", ["kill -SEGV $$", "exit 2", "exit 3"])
def test_crash_of_opener_ends_the_conversation(tmp_path: Path, line: str) -> None:
    async def talk(agent: Agent, client: Ends) -> None:
        assert await client.ask(opening()) == b""
        assert not len(agent.grants)
        assert "version" in json.loads(await Ends(tmp_path / "agent.sock").ask(query("status")))

    with_agent(tmp_path, opener(tmp_path, line), talk)


def query(what: str) -> dict[str, Any]:
    return {"version": 1, "op": what}


def test_opener_that_takes_too_long_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "OPEN_S", 0.3)

    async def talk(agent: Agent, client: Ends) -> None:
        assert await client.ask(opening()) == b""
        assert len(agent.grants) == 1, "the client may have the sockets"

    with_agent(tmp_path, opener(tmp_path, "exec sleep 30"), talk)
    assert not children_named("sleep")


def test_missing_opener_is_said(tmp_path: Path) -> None:
    async def talk(agent: Agent, client: Ends) -> None:
        number, text = await client.error(opening())
        assert number == errno.ENOENT and "the agent cannot serve the request" in text
        assert not len(agent.grants)

    with_agent(tmp_path, tmp_path / "none", talk)


def test_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Optional[int]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def talk(agent: Agent, client: Ends) -> None:
        monkeypatch.setattr(Path, "write_text", full)
        number, text = await client.error(opening())
        assert number == errno.ENOSPC and "No space left" in text
        monkeypatch.undo()
        assert not len(agent.grants), "nobody has these ports"
        other = Ends(tmp_path / "agent.sock")
        assert "version" in json.loads(await other.ask(query("status")))

    with_agent(tmp_path, opener(tmp_path, "exit 1"), talk)


def test_silent_client_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SILENCE_S", 0.2)

    async def talk(agent: Agent, client: Ends) -> None:
        loop = asyncio.get_running_loop()
        assert await asyncio.wait_for(loop.sock_recv(client.socket, 10), TIMEOUT_S) == b""
        assert agent.status()["connections"] == 0

    with_agent(tmp_path, opener(tmp_path), talk)


def test_user_that_is_not_served_has_one_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it could keep its connection by further requests."""
    monkeypatch.setattr(Policy, "permits", lambda *_: False)

    async def talk(agent: Agent, client: Ends) -> None:
        loop = asyncio.get_running_loop()
        number, _ = await client.error(query("status"))
        assert number == errno.EACCES
        assert await asyncio.wait_for(loop.sock_recv(client.socket, 10), TIMEOUT_S / 2) == b""
        assert agent.status()["connections"] == 0

    monkeypatch.setattr(server, "SILENCE_S", 10 * TIMEOUT_S)
    with_agent(tmp_path, opener(tmp_path), talk)


def test_client_that_does_not_read_is_let_go(tmp_path: Path) -> None:
    async def talk(agent: Agent, client: Ends) -> None:
        with pytest.raises(ConnectionError):
            while True:
                try:
                    client.socket.send(json.dumps(query("status")).encode())
                except BlockingIOError:
                    await asyncio.sleep(0.01)
        assert agent.status()["connections"] == 0

    with_agent(tmp_path, opener(tmp_path), talk)


def test_user_with_many_requests_keeps_nobody_waiting(folder: Path) -> None:
    """Of each user one request waits for the others."""
    path = folder / "agent.sock"

    async def talk(agent: Agent, client: Ends) -> None:
        path.chmod(0o666)
        served: list[int] = []
        go_on = asyncio.Event()

        async def refuse(client: server.Client, *_: object) -> tuple[int, Passed]:
            served.append(client.owner.uid)
            await go_on.wait()
            return server.REFUSED, Passed()

        agent._run_open = refuse  # type: ignore[method-assign, assignment]
        agent.policy = Policy(["1000"])
        many = [client, *(Ends(path) for _ in range(4))]
        for one in many:
            one.socket.send(json.dumps(opening()).encode())
        await until(lambda: agent.counts["requests"] == len(many))
        with user(1000):
            other = Ends(path)
        other.socket.send(json.dumps(opening()).encode())
        await until(lambda: agent.counts["requests"] == len(many) + 1)
        go_on.set()
        await until(lambda: len(served) == len(many) + 1)
        assert served == [0, 1000, *[0] * (len(many) - 1)]
        await until(lambda: not agent._turns)

    with_agent(folder, opener(folder), talk)


@pytest.mark.parametrize("turns", range(8))
def test_agent_ends_whatever_happens_at_the_same_time(tmp_path: Path, turns: int) -> None:
    """A client goes, and another one asks, just before SIGTERM."""

    async def talk(agent: Agent, client: Ends) -> None:
        await client.ask(query("status"))
        client.socket.send(json.dumps(query("status")).encode())
        agent._ended.set()
        for _ in range(turns):
            await asyncio.sleep(0)

    with_agent(tmp_path, opener(tmp_path), talk)
