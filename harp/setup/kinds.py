# SPDX-License-Identifier: Apache-2.0
"""Every kind of step that a journal may hold."""

from __future__ import annotations

from typing import Any

from harp.setup.bind import Bind
from harp.setup.bootline import BootPages
from harp.setup.kernel import LoadModule, SetValue
from harp.setup.nic_settings import NicSetting
from harp.setup.one_subnet import InterfaceSysctl
from harp.setup.pages import Pages
from harp.setup.steps import Blackhole, FolderMode, MakeFolder, Step, StepError, WriteFile

KINDS: list[type[Step]] = [
    MakeFolder,
    FolderMode,
    WriteFile,
    Blackhole,
    LoadModule,
    SetValue,
    InterfaceSysctl,
    NicSetting,
    Pages,
    BootPages,
    Bind,
]


def from_row(row: dict[str, Any]) -> Step:
    """The step of a journal row. Raises StepError for a kind of another release."""
    fields = dict(row)
    kind = fields.pop("kind", None)
    for step in KINDS:
        if step.kind == kind:
            try:
                return step(**fields)
            except TypeError:
                break
    raise StepError(
        f"the journal holds a step that this release does not know ({kind!r}); "
        "undo with the release that made it"
    )
