# SPDX-License-Identifier: Apache-2.0
"""Which GPU a process will use, from CUDA_VISIBLE_DEVICES and the driver's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from harp.testing import _engine

RANKS = (
    "OMPI_COMM_WORLD_RANK",
    "RANK",
    "MV2_COMM_WORLD_RANK",
    "PMI_RANK",
    "PALS_RANKID",
    "SLURM_PROCID",
)
JOBS = (
    "HARP_JOB",
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "FLUX_JOB_ID",
    "PALS_APID",
    "TORCHELASTIC_RUN_ID",
    "PMIX_NAMESPACE",
    "PMI_JOBID",
    "OMPI_MCA_ess_base_jobid",
)
IDS = ("0000:3b:00.0", "0000:86:00.0", "0001:05:00.0")


def driver(root: Path, *models: str) -> bytes:
    """The NVIDIA driver's folder on a host with these GPUs; the host's root."""
    gpus = root / "proc/driver/nvidia/gpus"
    for number, (pci, model) in enumerate(zip(IDS, models)):
        (gpus / pci).mkdir(parents=True)
        (gpus / pci / "information").write_text(
            f"Model: \t\t {model}\nGPU UUID: \t GPU-{number}{number}3b-77\nBus Type: PCIe\n"
        )
    (gpus / "unrelated").mkdir()
    return str(root).encode()


@pytest.fixture
def root(tmp_path: Path) -> bytes:
    return driver(tmp_path, "A100", "A100", "A100")


@pytest.mark.parametrize(
    "visible, rank, expected",
    [
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
        ("GPU-", None, ""),
        ("GPU-113b-77-more", None, ""),
        ("MIG-5", None, ""),
        ("MIG-GPU-113b-77/1/0", None, IDS[1]),
        ("MIG-GPU-113b-77/1/0,MIG-GPU-223b/2/0", 1, IDS[2]),
        ("", 0, ""),
        ("-1", 0, ""),
        ("0,-1,1", 0, IDS[0]),
        ("0,-1,1", 2, ""),
        (" 2, 1", 1, IDS[1]),
        ("2,1 ", 1, IDS[1]),
        ("2,", 1, ""),
        (",", 1, ""),
    ],
)
def test_gpu_follows_visible_devices_and_rank(
    visible: "str | None",
    rank: "int | None",
    expected: str,
    root: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", str(rank))
    assert _engine.place(root)[2] == expected


def test_mig_uuid_selects_only_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer drivers give it a UUID that the GPU's information does not tell."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-c7ee1b2a-77")
    assert _engine.place(driver(tmp_path, "H100"))[2] == IDS[0]


@pytest.mark.parametrize(
    "order, expected", [(None, ""), ("FASTEST_FIRST", ""), ("PCI_BUS_ID", IDS[1])]
)
def test_gpu_index_with_unequal_models_needs_pci_order(
    order: "str | None", expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fastest is CUDA's first one: no guess, unless the buses' order was asked for."""
    root = driver(tmp_path, "T4", "H100", "T4")
    if order:
        monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert _engine.place(root)[2] == expected
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-11")
    assert _engine.place(root)[2] == IDS[1]


def test_missing_driver_gives_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert _engine.place(str(tmp_path / "absent").encode()) == (-1, 0, "")


@pytest.mark.parametrize("text", ["-1", "x", "1x", "", "99999999999999999999"])
def test_non_numeric_rank_is_ignored(
    text: str, root: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", text)
    assert _engine.place(root)[0] == -1


@pytest.mark.parametrize("text", ["", "8(x", "(x2)", "8(x2", "8x,,", "8(x99999999999999999999)"])
def test_malformed_slurm_task_list_is_survived(
    text: str, root: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_LOCALID", "0")
    monkeypatch.setenv("SLURM_NODEID", "2")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", text)
    assert _engine.place(root)[1] in (0, 8)


def test_job_rank_prefers_launcher_over_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RANKS:
        monkeypatch.delenv(name, raising=False)
    assert _engine.job_rank() == -1
    for number, name in reversed(list(enumerate(RANKS))):  # the launcher's before SLURM's
        monkeypatch.setenv(name, str(number))
        assert _engine.job_rank() == number
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "none")
    assert _engine.job_rank() == 1


def test_number_of_ranks_is_of_the_launcher_that_gave_the_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in RANKS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert _engine.job()[1] == 0
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    assert _engine.job()[1] == 2
    monkeypatch.setenv("RANK", "1")
    assert _engine.job()[1] == 8


def test_job_has_name_of_user_then_scheduler_then_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in JOBS:
        monkeypatch.delenv(name, raising=False)
    assert _engine.job()[0] == ""
    for name in reversed(JOBS):
        monkeypatch.setenv(name, f"by {name}")
        assert _engine.job()[0] == f"by {name}"
    monkeypatch.setenv("HARP_JOB", "x" * 200)
    assert _engine.job()[0] == "x" * 123


def test_torchrun_without_id_has_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in JOBS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert _engine.job()[0] == ""
