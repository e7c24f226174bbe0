# SPDX-License-Identifier: Apache-2.0
"""The networks between two ranks: a wire in memory, or the interfaces of two hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools.hosts.jobs import Joint
from tools.hosts.lab_fixtures import lab
from tools.hosts.ranks import packet_site, remove_wire, wire_path, wire_site

__all__ = ["join", "lab"]


@pytest.fixture
def join(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Joint]]:
    """join(**keys): two sites with these keys in their configurations. The parameter is the network
    between them: "wire" or "packet"."""
    control = tmp_path / "faults"
    control.touch()
    faults = f"tso=1,control={control}"

    if request.param == "packet":
        first, second = request.getfixturevalue("lab").hosts

        def make(**keys: object) -> Joint:
            sites = [
                packet_site(tmp_path / "0", first, faults=faults, **keys),
                packet_site(tmp_path / "1", second, **keys),
            ]
            return Joint(sites, first.address, control)

        yield make
        return

    path = wire_path()

    def make_wire(**keys: object) -> Joint:
        sites = [
            wire_site(tmp_path / "0", path, 1, **{"device": f"fault:{faults}|wire:{path}", **keys}),
            wire_site(tmp_path / "1", path, 2, **keys),
        ]
        return Joint(sites, "127.0.0.1", control)

    yield make_wire
    remove_wire(path)
