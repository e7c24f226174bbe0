# SPDX-License-Identifier: Apache-2.0
"""The agent's status in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harp.observe.prometheus import family, sample

# Of server.COUNTS.
SENTENCES = {
    "requests": "Requests that clients have sent.",
    "granted": "Devices that the agent has opened for jobs.",
    "released": "Grants that are over, because nobody has their sockets.",
    "denied": "Requests that the policy forbids.",
    "exhausted": "Requests for which no local ports or no address was free.",
    "malformed": "Requests that the agent cannot read.",
    "refused": "Connections refused because their user has too many.",
    "failed": "Requests that failed: a device could not be opened, or the agent had an error.",
}


def lines(state: dict[str, Any]) -> Iterator[str]:
    """The families of an agent's answer to "status". Another release may count other things."""
    yield from family("harp_agent_info", "gauge", "The agent of this node.")
    yield sample("harp_agent_info", 1, pid=state["pid"], protocol=state["version"])
    yield from family(
        "harp_agent_start_time_seconds", "gauge", "When the agent began, since the epoch."
    )
    yield sample("harp_agent_start_time_seconds", f"{state['started']:.3f}")
    yield from family("harp_agent_clients", "gauge", "Connections of clients now.")
    yield sample("harp_agent_clients", state["connections"])
    yield from family("harp_agent_grants", "gauge", "Devices that jobs have now.")
    yield sample("harp_agent_grants", state["granted"])
    for name, sentence in SENTENCES.items():
        if name in state["counts"]:
            yield from family(f"harp_agent_{name}_total", "counter", sentence)
            yield sample(f"harp_agent_{name}_total", state["counts"][name])
