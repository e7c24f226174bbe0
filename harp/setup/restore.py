# SPDX-License-Identifier: Apache-2.0
"""What set-up made before a reboot, planned again without asking: harp-setup.service runs this.

Only NICs of the journal are taken from the kernel. The user's choices come from the journal, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from harp.setup import dpdk, nics, pages, pci
from harp.setup.bind import Bind
from harp.setup.journal import Journal
from harp.setup.plan import SCHEMES, conf_dir, existing_files
from harp.setup.request import PlanError, Request
from harp.setup.steps import Step


def _check_same_nic(step: Bind) -> None:
    """Raises PlanError if another NIC has the PCI id now: a card was added or removed."""
    now = pci.driver_of(step.pci_id)
    if now not in ("", step.earlier, *nics.GIVEN):
        raise PlanError(
            f"{step.pci_id} is now a device of the driver {now}, but set-up took over a NIC of "
            f"{step.earlier}; run harp setup undo, then harp setup"
        )


def requests(steps: Sequence[Step]) -> list[Request]:
    """The devices that the journal's steps are for. Raises PlanError."""
    taken = {step.pci_id for step in steps if isinstance(step, Bind)}
    if not steps:
        return []
    files = [file for file in existing_files(conf_dir()) if file.inner.startswith(SCHEMES)]
    return [
        Request({"device": file.device, "address": file.address})
        for file in files
        if not file.inner.startswith("dpdk:") or file.place in taken
    ]


def choice(steps: Sequence[Step]) -> dpdk.Choice:
    """The choices with which the journal's steps were planned."""
    binds = [step for step in steps if isinstance(step, Bind)]
    made = [step for step in steps if isinstance(step, pages.Pages)]
    drivers = {step.driver for step in binds}
    mib = sum(step.count - step.others for step in made) * pages.SMALL_KB // 1024
    return dpdk.Choice(
        driver=drivers.pop() if len(drivers) == 1 else None,
        hugepages=mib // max(1, len(binds)),
        # The kernel has configured the NIC again at boot, with its address.
        even_if_used=True,
    )


def recorded() -> tuple[list[Request], dpdk.Choice]:
    """The requests and choices to apply again. Raises PlanError or StepError."""
    steps = Journal(conf_dir()).steps
    for step in steps:
        if isinstance(step, Bind):
            _check_same_nic(step)
    return requests(steps), choice(steps)
