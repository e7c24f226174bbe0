# SPDX-License-Identifier: Apache-2.0
"""What NCCL would get: the bandwidth that NICs, rails and GPUs allow, beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harp.check.hosts import Host


@dataclass(frozen=True)
class Expected:
    """Rates in Gbit/s. `nics`: of all NICs of the host; `gpus`: of its GPUs' PCIe links, 0: no GPU
    is known. `gbit` is the least of them."""

    nics: float
    rails: int
    gpus: float
    gpu_count: int

    @property
    def gbit(self) -> float:
        return min(self.nics, self.gpus) if self.gpus else self.nics

    @property
    def limit(self) -> str:
        """What limits it."""
        return "PCIe of the GPUs" if self.gpus and self.gpus < self.nics else "NICs"


def _speeds_are_known(host: Host) -> bool:
    # A rank of an older release does not say it.
    return all(device.get("speed_known", True) for device in host.facts["devices"])


def of_host(host: Host) -> Expected:
    """What a host can send and receive."""
    speeds = [device["speed_mbps"] for device in host.facts["devices"]]
    gpus = host.facts["gpus"]
    return Expected(
        nics=sum(speeds) / 1000,
        rails=len(speeds),
        gpus=sum(gpu["pcie_gbit"] for gpu in gpus),
        gpu_count=len(gpus),
    )


def inbound(
    hosts: Sequence[Host], together: Mapping[tuple[int, int], float], host_of: Sequence[int]
) -> dict[int, float]:
    """The mean rate at which each host received from other hosts while all sent, Gbit/s."""
    found: dict[int, float] = {}
    for host in hosts:
        rates = [
            rate
            for (source, target), rate in together.items()
            if host_of[target] == host.number and host_of[source] != host.number
        ]
        if rates:
            found[host.number] = sum(rates) / len(rates) * len(host.ranks)
    return found


def sentences(
    hosts: Sequence[Host], together: Mapping[tuple[int, int], float], host_of: Sequence[int]
) -> list[str]:
    """What would NCCL get, in lines."""
    if len(hosts) < 2:
        return ["What would NCCL get: all ranks are on one host, where NCCL uses no network."]
    without = [host.name for host in hosts if not host.facts["devices"]]
    if without:
        return [f"What would NCCL get: unknown, because HARP has no NIC on {', '.join(without)}."]
    measured = inbound(hosts, together, host_of)
    slowest = min(measured, key=lambda number: measured[number]) if measured else 0
    rate = measured.get(slowest, 0.0)
    into = f"Measured, all ranks at once: {rate:.3g} Gbit/s into {hosts[slowest].name}, the slowest"
    unknown = [host.name for host in hosts if not _speeds_are_known(host)]
    if unknown:
        names = ", ".join(unknown)
        first = f"What would NCCL get: the NIC's speed is unknown on {names} (set speed_mbps)."
        return [first, f"{into}."] if measured else [first]
    each = {host.number: of_host(host) for host in hosts}
    least = min(hosts, key=lambda host: each[host.number].gbit)
    one = each[least.number]
    gpus = f"{one.gpu_count} GPUs (PCIe {one.gpus:.0f} Gbit/s)" if one.gpu_count else "no GPU found"
    limited = "each host" if len(set(each.values())) == 1 else least.name
    lines = [
        f"What would NCCL get: at most {one.gbit:.4g} Gbit/s into each host, so all_reduce has a "
        f"bus bandwidth of at most {one.gbit / 8:.3g} GB/s. The limit is the {one.limit} of "
        f"{limited}: {one.rails} rail{'s' if one.rails != 1 else ''} of {one.nics:.4g} Gbit/s "
        f"together, {gpus}.",
    ]
    if measured:
        share = 100 * rate / one.gbit if one.gbit else 0
        percent = f"{share:.0f}" if share >= 1 else f"{share:.1g}"
        lines.append(f"{into}: {percent} % of that.")
        if len(hosts) == 2:
            lines.append(
                "No link between two hosts alone is called slow. Compare a rate that is too low "
                "with that of the kernel's TCP: harp perf sendrecv, without and with --kernel."
            )
    return lines
