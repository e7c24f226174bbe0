# SPDX-License-Identifier: Apache-2.0
"""The agent's status in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harp.observe.prometheus import family, sample

# One family for each of server.COUNTS.
SENTENCES = {
    "harp_agent_requests_total": "Requests that clients have sent.",
    "harp_agent_granted_total": "Devices that the agent has opened for jobs.",
    "harp_agent_released_total": "Grants that are over, because nobody has their sockets.",
    "harp_agent_denied_total": "Requests that the policy forbids.",
    "harp_agent_exhausted_total": "Requests for which no local ports or no address was free.",
    "harp_agent_malformed_total": "Requests that the agent cannot read.",
    "harp_agent_refused_total": "Connections refused because their user has too many.",
    "harp_agent_failed_total": "Requests that failed, for example because of the device.",
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
        count = state["counts"].get(name[len("harp_agent_") : -len("_total")])
        if count is not None:
            yield from family(name, "counter", sentence)
            yield sample(name, count)
