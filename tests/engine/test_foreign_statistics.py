# SPDX-License-Identifier: Apache-2.0
"""Root reads the statistics of all users. The files of one user cost a bounded amount of work, keep
no other user's process out, and never pass for one of another user."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from harp.observe import descriptors, foreign, statfile
from harp.testing import _engine

USER = 20000 + os.getpid() % 40000  # no other test has it
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes the user: needs root")

# Holds files open, and as the user locks those whose argument begins with "+". Every user may open
# a statistics file, but not in pytest's folders: so root opens them.
HOLDER = """
import fcntl, os, sys
user, *args = sys.argv[1:]
files = [os.open(arg[1:], os.O_RDONLY) for arg in args]
os.setresuid(*[int(user)] * 3)
for arg, file in zip(args, files):
    if arg[0] == "+":
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("ready", flush=True)
sys.stdin.read()
"""


def left_behind(folder: Path, count: int) -> list[Path]:
    """Good files that no process holds."""
    file = _engine.StatFile()
    content = Path(file.path).read_bytes()
    file.close()
    paths = [folder / f"{number:016x}.stat" for number in range(count)]
    for path in paths:
        path.write_bytes(content)
    return paths


@contextmanager
def held(args: Sequence[str]) -> Iterator[int]:
    """The pid of a user's process that holds these files; see HOLDER."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(USER), *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout and holder.stdin
        assert holder.stdout.readline() == "ready\n"
        yield holder.pid
        holder.stdin.close()
        assert holder.wait(30) == 0


def readings(monkeypatch: pytest.MonkeyPatch, pids: Sequence[int]) -> list[set[tuple[str, int]]]:
    """The id and the user of each process that is found among these, with the processes looked at
    in both orders. Other processes of this machine must not use up what may be read for root."""
    here = [
        one
        for one in descriptors.statistics_files()
        if int(one.path.relative_to("/proc").parts[0]) in pids
    ]
    found = []
    for order in (here, here[::-1]):
        monkeypatch.setattr(descriptors, "statistics_files", lambda order=order: order)
        found.append({(one.id, one.uid) for one in statfile.scan([], containers=True)})
    return found


@needs_root
def test_files_of_root_in_a_users_hands_are_the_users(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended processes of root have left them behind. They take nothing of what may be read for
    root, and are no processes of root."""
    mine = _engine.StatFile()
    old = left_behind(run_dir, 6)
    with held([f"+{path}" for path in old]) as pid:
        monkeypatch.setattr(statfile, "FILES_MOST", 3)
        for found in readings(monkeypatch, [pid, os.getpid()]):
            assert [one for one in found if one[1] != USER] == [(Path(mine.path).stem, 0)]
            assert len(found) == 1 + 3
    mine.close()


@needs_root
def test_a_user_cannot_rename_anothers_process(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user may give a file a second name, by a mount namespace of its own. The lock tells who
    publishes it."""
    mine = _engine.StatFile()
    other = run_dir / "ffffffffffffffff.stat"
    other.hardlink_to(mine.path)
    with held([f"-{other}"]) as pid:
        for found in readings(monkeypatch, [pid, os.getpid()]):
            assert found == {(Path(mine.path).stem, 0)}
    mine.close()


def process(proc: Path, pid: int, user: int, files: int) -> None:
    """What /proc has of a process: the descriptors of so many published files."""
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "fdinfo").mkdir()
    (folder / "status").write_text(f"Name:\trank\nUid:\t{user}\t0\t0\t0\n")
    for number in range(files):
        (folder / "fd" / str(number)).symlink_to(f"/memfd:{pid:08x}{number:08x}.stat (deleted)")
        line = f"pos:\t0\nlock:\t1: FLOCK  ADVISORY  WRITE {pid} 00:01:{number} 0 EOF\n"
        (folder / "fdinfo" / str(number)).write_text(line)


def test_descriptors_of_a_user_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all of its processes, also those of set-user-ID programs that it started."""
    for pid in range(1, 9):
        process(tmp_path, pid, 7, 10)
    process(tmp_path, 9, 8, 2)
    monkeypatch.setattr(descriptors, "DESCRIPTORS_MOST", 25)
    found = list(descriptors.statistics_files(tmp_path))
    assert [one.user for one in found] == [7] * 25 + [8] * 2


@needs_root
def test_bytes_of_a_user_are_bounded(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = _engine.StatFile()
    with ExitStack() as stack:
        for path in left_behind(run_dir, 8):
            os.chown(path, USER, -1)
            fcntl.flock(stack.enter_context(path.open()), fcntl.LOCK_EX)
        size = path.stat().st_size
        monkeypatch.setattr(statfile, "BYTES_MOST", 6 * size + 3 * statfile._OPENING)
        found = [one.uid for one in statfile.scan([run_dir])]
    # Two readings for each file.
    assert sorted(found) == [0] + [USER] * 3
    mine.close()


def test_empty_files_of_a_user_are_bounded(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that is opened takes time."""
    for number in range(20):
        (run_dir / f"{number:016x}.stat").touch()
    opened: list[Path] = []
    real = foreign.open_file
    monkeypatch.setattr(foreign, "open_file", lambda path, **how: opened.append(path) or real(path))
    monkeypatch.setattr(statfile, "BYTES_MOST", 10 << 12)
    assert statfile.scan([run_dir]) == []
    assert len(opened) == 10


def test_a_file_that_keeps_changing_is_read_a_bounded_number_of_times(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process appears without the flows that change."""
    file = _engine.StatFile()
    file.flow(0, state=1)
    header = statfile.read(Path(file.path))
    assert len(header.flows) == 1
    content, sizes = bytearray(Path(file.path).read_bytes()), []
    first = content.index(b"\x02\0\0\0\x01\0\0\0")  # an even generation, then the state
    content[first] = 3
    monkeypatch.setattr(foreign, "read_fd", lambda *_: sizes.append(1) or bytes(content))
    monkeypatch.setattr(statfile, "BYTES_MOST", 5 * len(content) + statfile._OPENING)
    (one,) = statfile.scan([run_dir])
    assert (one.flows, len(sizes)) == ([], 5)
    file.close()


def test_more_flows_than_any_release_writes_are_refused(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _engine.StatFile()
    monkeypatch.setattr(statfile, "_FLOWS_MOST", 511)
    with pytest.raises(statfile.StatError, match="damaged"):
        statfile.read(Path(file.path))
    file.close()
