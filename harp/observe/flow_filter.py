# SPDX-License-Identifier: Apache-2.0
"""Selects flows by their peer, their ports and their state, as filters of `ss` do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network

from harp.observe.statfile import Flow, Process


@dataclass(frozen=True)
class FlowFilter:
    """A flow fits if it fits one value of each field that has values: its peer is in one of the
    networks, one of its two ports is in `ports`, and its state is in `states`."""

    peers: tuple[IPv4Network, ...] = ()
    ports: tuple[int, ...] = ()
    states: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether it leaves anything out."""
        return bool(self.peers or self.ports or self.states)

    def takes(self, flow: Flow) -> bool:
        address = IPv4Address(flow.peer_address)
        return (
            (not self.peers or any(address in network for network in self.peers))
            and (not self.ports or not {flow.local_port, flow.peer_port}.isdisjoint(self.ports))
            and (not self.states or flow.state in self.states)
        )

    def only(self, process: Process) -> Process:
        """The process with the flows that fit alone."""
        return replace(process, flows=list(filter(self.takes, process.flows)))

    def narrowed(self, processes: Sequence[Process]) -> list[Process]:
        """The processes with the flows that fit alone, and without those that have no such flow."""
        if not self:
            return list(processes)
        fitting = map(self.only, processes)
        return [process for process in fitting if process.flows]
