# SPDX-License-Identifier: Apache-2.0
"""A host of the tests' own: folders for configuration and run files, and no
launcher's variables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

LAUNCHERS = (
    "OMPI_",
    "SLURM_",
    "PMI_",
    "MV2_",
    "PALS_",
    "MPI_LOCAL",
    "LOCAL_",
    "CUDA_",
    "HARP_MTU",
    "HARP_DISABLE",
    "HARP_DEBUG",
)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)


@pytest.fixture
def conf_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "config"
    folder.mkdir()
    monkeypatch.setenv("HARP_CONF_DIR", str(folder))
    return folder


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setenv("HARP_RUN_DIR", str(folder))
    return folder
