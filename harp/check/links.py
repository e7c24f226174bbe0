# SPDX-License-Identifier: Apache-2.0
"""The links of a rank with each other rank, through the plugin: one to send, one to receive.

A listener belongs to one peer, so that a rank knows who has connected.
"""

from __future__ import annotations

import ctypes as c
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from harp.check.netplugin import HANDLE_SIZE, Plugin, PluginError

LARGEST = 1 << 20  # bytes of a message
AWAITED = "the peer did not connect"  # begins the failure of a link that only the peer can explain
POSTED = 4  # receives and sends at a time on a link


@dataclass
class Link:
    """Both directions between this rank and a peer. `failure`: why it cannot be used; "": it can.
    Raises PluginError from all functions if the plugin reports a failure of the link."""

    plugin: Plugin
    memory: int  # address of LARGEST bytes, shared by all links: nobody looks at the contents
    send_comm: Optional[int] = None
    receive_comm: Optional[int] = None
    failure: str = ""
    _mhandles: tuple[int, int] = (0, 0)
    _sends: deque[int] = field(default_factory=deque)
    _receives: deque[int] = field(default_factory=deque)
    _unsent: int = 0  # messages of a drain
    _expected: int = 0

    def register(self) -> None:
        """Prepares the memory. Call it once, when both comms are there."""
        assert self.send_comm and self.receive_comm
        comms = (self.send_comm, self.receive_comm)
        one, other = (self.plugin.register(comm, self.memory, LARGEST) for comm in comms)
        self._mhandles = (one, other)

    def send(self, size: int) -> bool:
        """Posts a message of that many bytes. False: too many are outstanding."""
        assert self.send_comm
        self._reap()
        if len(self._sends) >= POSTED:
            return False
        request = self.plugin.isend(self.send_comm, self.memory, size, self._mhandles[0])
        if request is not None:
            self._sends.append(request)
        return request is not None

    def _reap(self) -> None:
        while self._sends and self.plugin.test(self._sends[0]) is not None:
            self._sends.popleft()

    def sent_all(self) -> bool:
        """Whether no message is outstanding."""
        self._reap()
        return not self._sends

    def arrived(self) -> Optional[int]:
        """The bytes of the next message; None: none has come. Receives stay posted."""
        return self._take(POSTED)

    def _take(self, posted: int) -> Optional[int]:
        """As `arrived`, with up to that many receives posted before."""
        assert self.receive_comm
        while len(self._receives) < posted:
            request = self.plugin.irecv(
                self.receive_comm, self.memory, LARGEST, self._mhandles[1]
            )  # fmt: skip
            if request is None:
                break
            self._receives.append(request)
        size = self.plugin.test(self._receives[0]) if self._receives else None
        if size is not None:
            self._receives.popleft()
        return size

    def begin_drain(self) -> bool:
        """Returns whether receives are outstanding. `drained` then ends them."""
        self._unsent = self._expected = POSTED if self._receives else 0
        return bool(self._receives)

    def drained(self) -> bool:
        """Each side sends as many empty messages as a link has receives. Returns whether those of
        both sides have arrived. Call it until then."""
        if self._unsent and self.send(0):
            self._unsent -= 1
        if self._expected and self._take(self._expected) is not None:
            self._expected -= 1
        return not self._unsent and not self._expected and self.sent_all()

    def close(self) -> None:
        """Closes both directions."""
        if self.send_comm:
            self.plugin.close_send(self.send_comm)
        if self.receive_comm:
            self.plugin.close_receive(self.receive_comm)
        self.send_comm = self.receive_comm = None


class Mesh:
    """The links of this rank, by the peer's rank."""

    def __init__(self, plugin: Plugin, device: int) -> None:
        self.plugin = plugin
        self.device = device
        self.links: dict[int, Link] = {}
        self._listeners: dict[int, int] = {}
        self._memory = c.create_string_buffer(LARGEST)

    def listen(self, peers: Collection[int]) -> dict[int, bytes]:
        """The handle for each peer. Raises PluginError."""
        handles = {}
        for peer in peers:
            self._listeners[peer], handles[peer] = self.plugin.listen(self.device)
        return handles

    def connect(self, handles: Mapping[int, bytes], seconds: float) -> None:
        """Opens the links with all peers at the same time. handles: those that the peers made for
        this rank. The links that do not open within that time have a failure."""
        memory = c.addressof(self._memory)
        buffers = {
            peer: c.create_string_buffer(handle, HANDLE_SIZE) for peer, handle in handles.items()
        }
        self.links = {peer: Link(self.plugin, memory) for peer in handles}
        until = time.monotonic() + seconds
        waiting = set(self.links)
        while waiting and time.monotonic() < until:
            for peer in list(waiting):
                link = self.links[peer]
                self._try(link, lambda: self._advance(peer, link, buffers[peer]))
                if link.failure or (link.send_comm and link.receive_comm):
                    waiting.remove(peer)
            os.sched_yield()
        for link in self.links.values():
            if not link.failure and link.send_comm and link.receive_comm:
                self._try(link, link.register)
            elif not link.failure and not link.send_comm:
                link.failure = f"swallowed: the connection did not open within {seconds:.0f} s"
            elif not link.failure:
                link.failure = f"{AWAITED} within {seconds:.0f} s"

    def _try(self, link: Link, action: Callable[[], None]) -> None:
        try:
            action()
        except PluginError as failure:
            link.failure = str(failure)

    def _advance(self, peer: int, link: Link, buffer: Any) -> None:
        if not link.send_comm:
            link.send_comm = self.plugin.connect(self.device, buffer)
        if not link.receive_comm:
            link.receive_comm = self.plugin.accept(self._listeners[peer])

    def failures(self) -> dict[int, str]:
        """Why links cannot be used, by the peer's rank."""
        return {peer: link.failure for peer, link in self.links.items() if link.failure}

    def drain(self, seconds: float) -> None:
        """Ends the receives that are outstanding on measured links. The end of a link with a
        receive is a failure, which writes a trace. Links that take longer are left as they are."""
        waiting = [link for link in self.links.values() if not link.failure and link.begin_drain()]
        until = time.monotonic() + seconds
        while waiting and time.monotonic() < until:
            for link in list(waiting):
                try:
                    done = link.drained()
                except PluginError:
                    done = True  # the link has failed
                if done:
                    waiting.remove(link)
            os.sched_yield()

    def close(self) -> None:
        """Closes all links and listeners."""
        for link in self.links.values():
            link.close()
        for listener in self._listeners.values():
            self.plugin.close_listener(listener)
        self._listeners.clear()
