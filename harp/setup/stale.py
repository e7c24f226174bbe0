# SPDX-License-Identifier: Apache-2.0
"""Steps of earlier choices: the configuration files do not need them any more."""

from __future__ import annotations

from collections.abc import Sequence

from harp.setup import one_subnet
from harp.setup.nic_settings import NicSetting
from harp.setup.one_subnet import InterfaceSysctl
from harp.setup.plan import Existing
from harp.setup.request import is_on_interface, scheme_of
from harp.setup.steps import Blackhole, FolderMode, Step, WriteFile


def stale(steps: Sequence[Step], files: Sequence[Existing]) -> list[Step]:
    """The steps that serve a device or an address that no file has, those of files that were
    removed by hand, and those of modes that were changed by hand. Undo must still restore a file
    that was there before set-up."""
    addresses = {file.address.partition("/")[0] for file in files}
    xdp = {file.place for file in files if scheme_of(file.device) == "xdp"}
    shared = [
        file.place for file in files if is_on_interface(file.device) and file.address == "kernel"
    ]
    in_one_subnet = one_subnet.concerned(shared)

    def is_stale(step: Step) -> bool:
        if isinstance(step, (WriteFile, FolderMode)):
            return step.is_undone()  # by the step's own path: a link may give it another one
        if isinstance(step, Blackhole):
            return step.address not in addresses
        if isinstance(step, NicSetting):
            return step.interface not in xdp
        return isinstance(step, InterfaceSysctl) and step.interface not in in_one_subnet

    return [step for step in steps if is_stale(step)]
