# SPDX-License-Identifier: Apache-2.0
"""Environment variables that select or disable HARP, and HARP's log lines: no line may announce
something that NCCL does not do."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import SYSTEM_ERROR, Failed, Rank, Site, packet_site

from tools.hosts.lab import Lab
from tools.hosts.ranks import open_files


@pytest.fixture
def site(lab: Lab, tmp_path: Path) -> Site:
    return packet_site(tmp_path, lab.hosts[0])


def sockets(rank: Rank) -> list[str]:
    return [to for to in open_files(rank.process.pid) if to.startswith("socket:")]


def declines(site: Site) -> str:
    """The only log line of a rank whose init fails without opening a socket."""
    with Rank(site) as rank:
        with pytest.raises(Failed) as failure:
            rank.init()
        assert (failure.value.call, failure.value.code) == ("init", SYSTEM_ERROR)
        assert sockets(rank) == []
        (line,) = rank.lines("NCCL ")
    assert not site.published()
    return line


@pytest.mark.parametrize("name", ["Socket", "IB", "HARPER"])
def test_nccl_net_naming_other_transport_declines(site: Site, name: str) -> None:
    """The user requests it, so it is no warning. Init fails, because NCCL would initialise HARP
    first and check the name afterwards."""
    site.environment["NCCL_NET"] = name
    assert declines(site) == f"NCCL INFO HARP: NCCL_NET={name} asks for another transport"


@pytest.mark.parametrize("name", ["HARP", "harp", "Harp", ""])
def test_nccl_net_naming_harp_or_unset_is_accepted(site: Site, name: str) -> None:
    """NCCL ignores the case of the name."""
    site.environment["NCCL_NET"] = name
    with Rank(site) as rank:
        rank.init()
        assert rank.warnings == [] and sockets(rank)


@pytest.mark.parametrize("name", ["HARP", "harp"])
@pytest.mark.parametrize("why", ["HARP_DISABLE=1", "no configuration"])
def test_nccl_net_harp_with_failed_init_is_a_warning(site: Site, name: str, why: str) -> None:
    """NCCL then has no other transport and fails, so HARP warns."""
    site.environment["NCCL_NET"] = name
    if why == "HARP_DISABLE=1":
        site.environment["HARP_DISABLE"] = "1"
    else:
        (site.folder / "ztcp0.conf").unlink()
    line = declines(site)
    assert line.startswith("NCCL WARN HARP: ") and why in line
    assert line.endswith(f"NCCL_NET={name} allows no other transport, so the job fails")


def test_log_names_requirement_for_all_hosts(site: Site) -> None:
    """Both the host with HARP and the one without log it: NCCL itself only reports an unknown
    address family."""
    with Rank(site) as rank:
        rank.init()
        (line,) = rank.lines("NCCL INFO HARP ")
        assert line.endswith("; all hosts of the job must use HARP, or none")
    site.environment["HARP_DISABLE"] = "1"
    assert declines(site).endswith(
        "; NCCL goes on without HARP. All hosts of the job must do the same, "
        'or the job fails ("address with family 45640")'
    )
