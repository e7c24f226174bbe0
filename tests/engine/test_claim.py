# SPDX-License-Identifier: Apache-2.0
"""Which ztcp*.conf a process takes, and what it says when it takes none."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harp import _tables

OWN = "device = packet:eth{0}\naddress = 10.0.{0}.1/24\n"
SHARED = "device = packet:eth{0}\n"

# Claims, says which file, and holds it until its standard input ends.
HOLDER = """
import sys
from harp import _tables
claim = _tables.Claim()
print(claim.path, flush=True)
sys.stdin.read()
"""


def write(folder: Path, *texts: str) -> list[Path]:
    paths = [folder / f"ztcp{i}.conf" for i in range(len(texts))]
    for i, (path, text) in enumerate(zip(paths, texts)):
        path.write_text(text.format(i))
    return paths


def declined(code: int) -> str:
    with pytest.raises(_tables.ConfigError) as caught:
        _tables.Claim()
    assert caught.value.code == -code, str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def claimed() -> str:
    with _tables.Claim() as claim:
        return str(Path(claim.path).name)


@contextmanager
def another_process() -> Iterator["subprocess.Popen[str]"]:
    """A process that has made its claim, or failed to, and lives."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip().endswith(".conf")
        yield process
    finally:
        process.kill()
        process.communicate(timeout=20)


def test_missing_folder_declines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARP_CONF_DIR", str(tmp_path / "absent"))
    assert "absent: No such file or directory; run 'harp setup'" in declined(errno.ENOENT)


def test_folder_without_configuration_declines(conf_dir: Path) -> None:
    (conf_dir / "ztcp0.conf.bak").write_text("not ours")
    assert "holds no ztcp*.conf; run 'harp setup'" in declined(errno.ENOENT)


def test_harp_disable_declines(conf_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(conf_dir, OWN)
    monkeypatch.setenv("HARP_DISABLE", "1")
    assert declined(errno.ECANCELED).startswith("HARP_DISABLE=1")
    monkeypatch.setenv("HARP_DISABLE", "0")
    assert claimed() == "ztcp0.conf"


def test_one_invalid_file_makes_all_ranks_decline(conf_dir: Path) -> None:
    write(conf_dir, OWN, "devise = packet:eth1\n")
    assert "ztcp1.conf:1: unknown key 'devise'" in declined(errno.EINVAL)


def test_files_are_claimed_in_numeric_order(conf_dir: Path) -> None:
    for number in (10, 9, 2):
        (conf_dir / f"ztcp{number}.conf").write_text(OWN.format(number))
    claims = [_tables.Claim() for _ in range(3)]
    assert [Path(claim.path).name for claim in claims] == [
        "ztcp2.conf",
        "ztcp9.conf",
        "ztcp10.conf",
    ]
    for claim in claims:
        claim.release()


def test_exclusive_file_is_claimed_once_and_holder_is_named(conf_dir: Path) -> None:
    write(conf_dir, OWN)
    with another_process() as holder:
        assert f"ztcp0.conf by process {holder.pid} (python" in declined(errno.EBUSY)
    assert claimed() == "ztcp0.conf"  # the lock died with its process


def test_shared_file_is_claimed_by_all_ranks(
    conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(conf_dir, SHARED)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    with another_process(), another_process():
        with _tables.Claim() as claim:
            assert claim.shared


def test_shared_claim_excludes_exclusive_claim(conf_dir: Path) -> None:
    (path,) = write(conf_dir, SHARED)
    with _tables.Claim():
        path.write_text(OWN.format(0))
        declined(errno.EBUSY)


def test_release_ends_claim_despite_forked_child(conf_dir: Path) -> None:
    write(conf_dir, OWN)
    claim = _tables.Claim()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    claim.release()
    assert claimed() == "ztcp0.conf"
    os.close(writer)
    os.waitpid(child, 0)


def test_exec_does_not_inherit_claim_descriptor(conf_dir: Path) -> None:
    write(conf_dir, OWN)
    with _tables.Claim() as claim:
        child = subprocess.run(
            ["ls", "-l", "/proc/self/fd"],
            capture_output=True,
            text=True,
            close_fds=False,
            check=True,
            timeout=20,
        )
        assert claim.path not in child.stdout


@pytest.mark.parametrize(
    "rank, size",
    [
        ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
        ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    ],
)
def test_local_rank_selects_file(
    rank: str, size: str, conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(conf_dir, OWN, OWN, OWN)
    monkeypatch.setenv(rank, "2")
    monkeypatch.setenv(size, "3")
    assert claimed() == "ztcp2.conf"
    monkeypatch.setenv(size, "4")
    assert "3 files for 4 local ranks" in declined(errno.EUSERS)


def test_slurm_variables_select_file(conf_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(conf_dir, OWN, OWN, OWN)
    monkeypatch.setenv("SLURM_LOCALID", "1")
    monkeypatch.setenv("SLURM_NODEID", "2")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "8(x2),3,5")
    assert claimed() == "ztcp1.conf"
    monkeypatch.setenv("SLURM_NODEID", "3")
    assert "3 files for 5 local ranks" in declined(errno.EUSERS)
    monkeypatch.setenv("SLURM_NODEID", "0")
    assert "3 files for 8 local ranks" in declined(errno.EUSERS)
    monkeypatch.setenv("LOCAL_RANK", "2")  # torchrun under SLURM knows better
    assert claimed() == "ztcp2.conf"


def test_shared_file_serves_surplus_ranks(conf_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(conf_dir, OWN, SHARED)
    monkeypatch.setenv("LOCAL_RANK", "5")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert claimed() == "ztcp1.conf"


def test_claimed_file_is_skipped(conf_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(conf_dir, OWN, OWN, OWN)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with _tables.Claim() as first:
        assert Path(first.path).name == "ztcp1.conf"
        assert claimed() == "ztcp2.conf"


def test_unreadable_file_declines(conf_dir: Path) -> None:
    (conf_dir / "ztcp0.conf").mkdir()
    assert "cannot be read" in declined(errno.EISDIR)
    (conf_dir / "ztcp0.conf").rmdir()
    os.mkfifo(conf_dir / "ztcp0.conf")
    declined(errno.ESPIPE)


def test_a_file_that_cannot_be_opened_is_named(conf_dir: Path) -> None:
    (conf_dir / "ztcp0.conf").symlink_to("nowhere")
    assert "ztcp0.conf: cannot be opened: No such file" in declined(errno.ENOENT)


def test_more_than_256_files_decline(conf_dir: Path) -> None:
    """Several files may name one NIC, so 256 files are fewer NICs than NCCL's limit."""
    write(conf_dir, *["device = packet:eth0\n"] * 257)
    assert "holds 257 ztcp*.conf and HARP reads at most 256" in declined(errno.EINVAL)
    (conf_dir / "ztcp256.conf").unlink()
    assert claimed() == "ztcp0.conf"


def test_too_long_folder_name_declines(conf_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is found, the file's name does not fit behind it."""
    write(conf_dir, SHARED)
    monkeypatch.setenv("HARP_CONF_DIR", f"{conf_dir}/" + "./" * ((4090 - len(str(conf_dir))) // 2))
    assert "the folder's name is too long; shorten HARP_CONF_DIR" in declined(errno.ENAMETOOLONG)


# Claims where flock fails with an errno, as it does on some network file systems.
WITHOUT_FLOCK = """
import ctypes, platform, struct, sys
from harp import _tables
number = {"x86_64": 73, "aarch64": 32}[platform.machine()]
lines = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50000 | int(sys.argv[1])),
         (6, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
program = ctypes.create_string_buffer(struct.pack("HL", len(lines), ctypes.addressof(code)))
prctl, zero = ctypes.CDLL(None).prctl, ctypes.c_ulong(0)
assert prctl(38, ctypes.c_ulong(1), zero, zero, zero) == 0  # no new privileges
assert prctl(22, ctypes.c_ulong(2), program, zero, zero) == 0  # this filter
try:
    _tables.Claim()
except _tables.ConfigError as error:
    print(error.code, error)
"""


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EBADF, errno.ENOLCK])
def test_file_system_without_locks_is_named(conf_dir: Path, code: int) -> None:
    write(conf_dir, OWN, SHARED)
    args = [sys.executable, "-c", WITHOUT_FLOCK, str(code)]
    done = subprocess.run(args, text=True, capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        f"{-code} cannot lock a ztcp*.conf in {conf_dir}: {os.strerror(code)}; "
        "put HARP_CONF_DIR on a local file system\n"
    )
