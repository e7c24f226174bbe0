# SPDX-License-Identifier: Apache-2.0
"""Which GPU a process will use, from CUDA_VISIBLE_DEVICES and the driver's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from harp.testing import _engine

IDS = ("0000:3b:00.0", "0000:86:00.0", "0001:05:00.0")


@pytest.fixture
def gpus(tmp_path: Path) -> bytes:
    for number, pci in enumerate(IDS):
        (tmp_path / pci).mkdir()
        (tmp_path / pci / "information").write_text(
            f"Model: \t\t A100\nGPU UUID: \t GPU-{number}{number}3b-77\nBus Type: PCIe\n")
    (tmp_path / "unrelated").mkdir()
    return str(tmp_path).encode()


@pytest.mark.parametrize("visible, rank, expected", [
    (None, None, ""),
    (None, 1, IDS[1]),
    (None, 9, ""),
    ("2", None, IDS[2]),
    ("2", 5, IDS[2]),
    ("2,0", 1, IDS[0]),
    ("2,0", None, ""),
    ("2,0", 2, ""),
    ("GPU-113b", None, IDS[1]),
    ("GPU-003b-77,GPU-223b", 1, IDS[2]),
    ("MIG-5", None, ""),
    ("", 0, ""),
    ("-1", 0, ""),
])
def test_gpu(visible: "str | None", rank: "int | None", expected: str, gpus: bytes,
             monkeypatch: pytest.MonkeyPatch) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", str(rank))
    assert _engine.place(gpus)[2] == expected


def test_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert _engine.place(str(tmp_path / "absent").encode()) == (-1, 0, "")


@pytest.mark.parametrize("text", ["-1", "x", "1x", "", "99999999999999999999"])
def test_a_rank_that_is_no_number(text: str, gpus: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", text)
    assert _engine.place(gpus)[0] == -1


@pytest.mark.parametrize("text", ["", "8(x", "(x2)", "8(x2", "8x,,", "8(x99999999999999999999)"])
def test_a_strange_list_of_slurms(
        text: str, gpus: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_LOCALID", "0")
    monkeypatch.setenv("SLURM_NODEID", "2")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", text)
    assert _engine.place(gpus)[1] in (0, 8)
