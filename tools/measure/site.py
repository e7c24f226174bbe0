# SPDX-License-Identifier: Apache-2.0
"""The configuration of a rank in a measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Mapping, Optional


def write_configuration(folder: Path, keys: Mapping[str, str]) -> Dict[str, str]:
    """Writes a ztcp*.conf and makes a run folder below the existing `folder`. Returns the
    variables that name them."""
    configuration, run = folder / "config", folder / "run"
    configuration.mkdir()
    run.mkdir()
    lines = [f"{key} = {value}\n" for key, value in keys.items()]
    (configuration / "ztcp0.conf").write_text("".join(lines))
    return {"HARP_CONF_DIR": str(configuration), "HARP_RUN_DIR": str(run)}


def perf_args(api: Optional[int], flows: Optional[int]) -> List[str]:
    """The options of `harp perf` for the values that are given."""
    args = ["--api", str(api)] if api else []
    return args + (["--flows", str(flows)] if flows else [])
