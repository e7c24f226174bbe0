# SPDX-License-Identifier: Apache-2.0
"""The statistics file: what is published is what is read, and what happens where
nothing can be written."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from harp import _tables, paths
from harp.cli.exporter import Collector
from harp.cli.top import intervals
from harp.observe import statfile
from harp.testing import _engine
from tools.hosts.ranks import wait_until


@contextmanager
def started(*command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process that works until its standard input ends, with one line of text for each answer.
    It is killed if the test has not ended it."""
    with subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def answer(process: subprocess.Popen[str]) -> str:
    """The next line that the process prints; empty after its end."""
    assert process.stdout
    return process.stdout.readline().rstrip("\n")


def end_input(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.close()


PUBLISHER = """
import sys
from harp.testing import _engine
file = _engine.StatFile()
print(file.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    _engine.forget_log()
    yield
    _engine.forget_log()


def ip(text: str) -> int:
    return struct.unpack("=I", socket.inet_aton(text))[0]


def test_published_statistics_are_read_back(run_dir: Path) -> None:
    names = [counter["name"] for counter in _tables.counters()]
    file = _engine.StatFile(
        instances=3,
        device=b"packet:eth7",
        address=b"10.1.2.3/24",
        config=b"/etc/ztcp7.conf",
        about=b"offloads: all",
        world_size=8,
        job=b"train 7",
    )
    file.set(2, names.index("tcp_retransmits"), 2**64 - 1)
    file.set(0, names.index("rx_frames"), 5)
    file.set(1, names.index("rx_frames"), 6)
    (process,) = statfile.scan([run_dir])
    assert process.alive and process.pid == os.getpid() and process.uid == os.geteuid()
    assert abs(process.started - time.time()) < 60
    assert (process.device, process.address, process.config, process.about) == (
        "packet:eth7",
        "10.1.2.3/24",
        "/etc/ztcp7.conf",
        "offloads: all",
    )
    assert process.host == socket.gethostname()
    assert process.release == _tables.version()
    assert len(process.instances) == 3
    assert process.instances[2]["tcp_retransmits"] == 2**64 - 1
    assert process.totals["rx_frames"] == 11
    assert list(process.kinds) == [*names, *_tables.counter_aliases()]
    assert process.kinds["tcp_established"] == "gauge"
    assert process.flows == []
    assert (process.world_size, process.job) == (8, "train 7")
    assert (process.id, process.rank, process.gpu) == (Path(file.path).stem, None, "")
    file.close()
    assert os.listdir(run_dir) == []


def test_old_name_of_counter_in_older_file_has_new_name(run_dir: Path) -> None:
    names = [counter["name"] for counter in _tables.counters()]
    aliases = _tables.counter_aliases()
    file = _engine.StatFile()
    for old, new in aliases.items():
        file.set(0, names.index(new), len(old))
    data = Path(file.path).read_bytes()
    with open(file.path, "r+b") as raw:  # as a release that does not know the new names
        for old, new in aliases.items():
            raw.seek(data.index(new.encode() + b"\0"))
            raw.write(old.encode().ljust(len(new), b"\0"))
    process = statfile.read(Path(file.path))
    assert aliases
    for old, new in aliases.items():
        assert process.totals[old] == process.totals[new] == len(old)
        assert process.kinds[old] == process.kinds[new]
    file.close()


def test_rank_and_gpu_are_read_back(run_dir: Path) -> None:
    file = _engine.StatFile(rank=70000, gpu=b"0000:3b:00.0")
    process = statfile.read(Path(file.path))
    assert (process.rank, process.gpu) == (70000, "0000:3b:00.0")
    with open(file.path, "r+b") as raw:  # as a release that does not say it
        raw.seek(12)
        raw.write(struct.pack("=I", 1304))
    process = statfile.read(Path(file.path))
    assert (process.rank, process.gpu) == (None, "")
    file.close()


def test_published_flows_are_read_back(run_dir: Path) -> None:
    file = _engine.StatFile()
    file.flow(
        1,
        state=1,
        link=7,
        flow=2,
        instance=3,
        direction="S",
        local_address=ip("10.0.0.1"),
        local_port=50000,
        peer_address=ip("10.0.0.2"),
        peer_port=4000,
        mss=1448,
        cwnd=99,
        srtt_us=11,
        rto_us=5000,
        retransmits=4,
        bytes_in=2**40,
        bytes_out=2**41,
    )
    file.flow(511, state=6)
    first, last = statfile.read(Path(file.path)).flows
    assert (first.state, first.link, first.flow, first.instance, first.direction) == (
        "ESTABLISHED",
        7,
        2,
        3,
        "S",
    )
    assert (first.local, first.peer) == ("10.0.0.1:50000", "10.0.0.2:4000")
    assert (first.mss, first.cwnd, first.srtt_us, first.rto_us, first.retransmits) == (
        1448,
        99,
        11,
        5000,
        4,
    )
    assert (first.bytes_in, first.bytes_out) == (2**40, 2**41)
    assert last.state == "TIME-WAIT"
    file.flow(1)
    assert [flow.state for flow in statfile.read(Path(file.path)).flows] == ["TIME-WAIT"]
    file.close()


def test_flow_entry_being_written_is_skipped(run_dir: Path) -> None:
    file = _engine.StatFile()
    file.flow(0, state=1)
    header = Path(file.path).read_bytes()
    offset = struct.unpack_from("=Q", header, 72)[0]
    with open(file.path, "r+b") as raw:
        raw.seek(offset)
        raw.write(struct.pack("=I", 3))
    assert statfile.read(Path(file.path)).flows == []
    file.close()


def test_file_of_dead_process_is_hidden_and_removed(run_dir: Path) -> None:
    with started(sys.executable, "-c", PUBLISHER) as process:
        path = Path(answer(process))
        assert [one.pid for one in statfile.scan([run_dir])] == [process.pid]
        other = _engine.StatFile()  # the living are left alone
        assert path.exists()
    assert [one.pid for one in statfile.scan([run_dir])] == [os.getpid()]
    assert path.exists()
    other.close()
    _engine.StatFile().close()
    assert not path.exists()


def test_a_forked_child_does_not_keep_the_file_alive(run_dir: Path) -> None:
    parent = os.fork()
    if parent == 0:
        file = _engine.StatFile()
        child = os.fork()
        if child == 0:
            file.forget()
            time.sleep(60)
        os.write(os.open(run_dir / "child", os.O_WRONLY | os.O_CREAT), str(child).encode())
        os._exit(0)
    os.waitpid(parent, 0)
    try:
        wait_until(lambda: statfile.scan([run_dir]) == [], 30, "the child keeps it alive")
    finally:
        os.kill(int((run_dir / "child").read_text()), signal.SIGKILL)


def test_sweep_looks_at_a_bounded_number_of_files(run_dir: Path) -> None:
    for number in range(9000):
        (run_dir / f"{number:016x}.stat").touch()
    _engine.StatFile().close()
    assert 9000 - 8192 <= len(os.listdir(run_dir)) < 1000
    _engine.StatFile().close()
    assert os.listdir(run_dir) == []


SWEEPER = """
import os
from harp.testing import _engine
os.setresuid(*[23456] * 3)
_engine.StatFile().close()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away: needs root")
def test_sweep_opens_no_file_of_another_user() -> None:
    """The kernel breaks a lease if another process opens the file."""
    opened: list[int] = []
    before = signal.signal(signal.SIGIO, lambda number, frame: opened.append(number))
    with TemporaryDirectory(prefix="harp-test-", dir="/dev/shm") as folder:
        os.chmod(folder, 0o1777)
        theirs, mine = (Path(folder) / f"{letter * 16}.stat" for letter in "ab")
        mine.touch()
        os.chown(mine, 23456, -1)
        with theirs.open("w") as file:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            subprocess.run(
                [sys.executable, "-c", SWEEPER],
                env={**os.environ, "HARP_RUN_DIR": folder},
                check=True,
                timeout=30,
            )
        assert os.listdir(folder) == [theirs.name]
    signal.signal(signal.SIGIO, before)
    assert opened == []


def test_other_files_are_left_alone(run_dir: Path) -> None:
    kept = ["notes.stat", "0123456789abcdef.txt", "0123456789abcde.stat", "fedcba9876543210.new"]
    for name in kept:
        (run_dir / name).write_text("x")
    (run_dir / "0123456789abcdef.stat").symlink_to(run_dir / "notes.stat")
    left_behind = run_dir / "00000000000000aa.stat"
    left_behind.write_text("by a process whose clock was ahead")
    os.utime(left_behind, (time.time() + 100, time.time() + 100))
    old = run_dir / "00000000000000bb.new"
    old.write_text("never finished")
    os.utime(old, (0, 0))
    _engine.StatFile().close()
    assert sorted(os.listdir(run_dir)) == sorted([*kept, "0123456789abcdef.stat"])


def test_sockets_of_dead_processes_are_removed(run_dir: Path) -> None:
    """A socket belongs to the process that has the statistics file beside it."""
    living = _engine.StatFile()
    (run_dir / "00000000000000aa.stat").write_text("left")
    dead = ["00000000000000aa-0.capture", "00000000000000bb-11.capture"]
    kept = [f"{Path(living.path).stem}-0.capture", "00000000000000bb-.capture", "mine.capture"]
    for name in dead + kept:
        os.mknod(run_dir / name, stat.S_IFSOCK | 0o600)
    (run_dir / "00000000000000bb-1.capture").write_text("no socket")
    kept += ["00000000000000bb-1.capture", Path(living.path).name]
    # The order in a folder is any: the file of aa may go after its socket was looked at.
    for _ in range(2):
        _engine.StatFile().close()
    assert sorted(os.listdir(run_dir)) == sorted(kept)
    living.close()


def fallback() -> Path:
    return Path(f"/dev/shm/harp-{os.geteuid()}")


def with_own_shm(program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program with a /dev/shm of its own. Commands of other tests read the machine's."""
    script = f'mount -t tmpfs -o size=8m none /dev/shm && exec "{sys.executable}" -c "$0"'
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", script, program],
        capture_output=True,
        text=True,
        timeout=30,
    )


FALLS_BACK = """
from harp.observe import statfile
from harp.testing import _engine
file = _engine.StatFile()
((level, line),) = _engine.drain()
(seen,) = statfile.scan()
assert seen.path == file.path
print(file.path, level, line, sep="\\n")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system: needs root")
@pytest.mark.parametrize("folder", ["absent", "a file"])
def test_missing_run_folder_falls_back_with_one_warning(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("HARP_RUN_DIR", str(tmp_path / folder))
    done = with_own_shm(FALLS_BACK)
    assert done.returncode == 0, done.stderr
    path, level, line = done.stdout.splitlines()
    assert Path(path).parent == fallback() and level == "WARN"
    assert str(tmp_path / folder) in line and f"go to {fallback()}" in line


FULL = """
import sys
from harp.testing import _engine
file = _engine.StatFile(instances=2)
file.set(1, 3, 7)
file.flow(511, state=1)
print(repr(file.path), _engine.drain())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small /dev/shm: needs root")
@pytest.mark.parametrize(
    "mount, said",
    [
        ("mount -t tmpfs -o size=4k none /dev/shm", "No space left on device"),
        ("mount -t tmpfs -o ro none /dev/shm", "Read-only file system"),
    ],
)
def test_unwritable_statistics_do_not_stop_job(mount: str, said: str) -> None:
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{mount}; exec "$0" -c "$1"', sys.executable, FULL],
        env={**os.environ, "HARP_RUN_DIR": "/proc"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("''")
    assert done.stdout.count("WARN") == 1
    assert said in done.stdout and "/dev/shm/harp-" in done.stdout


TAKEN = """
import os
from harp.observe import statfile
from harp.testing import _engine
names = [f"harp-{os.geteuid()}", f"harp-{os.geteuid()}-{'0' * 16}"]
for name in names:
    os.mkdir(f"/dev/shm/{name}")
    os.chown(f"/dev/shm/{name}", 12345, -1)
files = [_engine.StatFile(), _engine.StatFile()]
assert sorted(one.path for one in statfile.scan()) == sorted(file.path for file in files)
(folder,) = {os.path.dirname(file.path) for file in files}
print(folder, set(os.listdir("/dev/shm")) - set(names))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="gives folders away: needs root")
def test_another_users_folder_in_place_of_the_fallback_hides_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARP_RUN_DIR", "/proc")
    done = with_own_shm(TAKEN)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"/dev/shm/(harp-0-[0-9a-f]{16}) \{'\1'\}\n", done.stdout)


LOCKED_FIRST = """
import os
from harp.testing import _engine
os.umask(0o022)
file = _engine.StatFile()
print(os.path.dirname(file.path), oct(os.stat(file.path).st_mode))
"""


def test_no_other_user_locks_the_file_first(run_dir: Path) -> None:
    preloaded = os.environ.get("LD_PRELOAD", "")
    library = paths.build_dir() / "tests/engine/liblock_first.so"
    done = subprocess.run(
        [sys.executable, "-c", LOCKED_FIRST],
        env={**os.environ, "LD_PRELOAD": f"{preloaded}:{library}"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.stdout, done.stderr) == (f"{run_dir} 0o100644\n", "")


WITHOUT_PATH = """
import sys
from harp.testing import _engine
file = _engine.StatFile(rank=4321, job=sys.argv[1].encode())
file.set(0, 3, 7)
print(repr(file.path), flush=True)
sys.stdin.read()
file.close()
print("closed", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a read-only root: needs root")
def test_host_sees_statistics_of_container_without_writable_folder(run_dir: Path) -> None:
    """By the descriptor: the container's root is read-only, and so is its /dev/shm."""
    read_only = "mount -o remount,bind,ro / && mount -t tmpfs -o ro none /dev/shm"
    contained = ["unshare", "-m", "--pid", "--fork", "sh", "-c", f'{read_only} && exec "$@"', "sh"]
    job = f"read-only {os.getpid()}"

    def seen() -> list[statfile.Process]:
        return [one for one in statfile.scan(containers=True) if one.job == job]

    command = [*contained, sys.executable, "-c", WITHOUT_PATH, job]
    with started(*command, HARP_RUN_DIR=str(run_dir)) as container:
        assert answer(container) == "''"
        (process,) = seen()
        assert process.alive and (process.rank, process.pid) == (4321, 1)
        assert list(process.instances[0].values())[3] == 7
        assert process.path.startswith("/proc/") and len(process.id) == 16
        assert not [one for one in statfile.scan() if one.job == job]
        args = [sys.executable, "-m", "harp", "stat", "--json", "--id", process.id]
        said = subprocess.run([*args, "--containers"], capture_output=True, text=True, timeout=60)
        assert said.returncode == 0 and f'"job": "{job}"' in said.stdout, said.stderr
        pairs = next(intervals(0.1, 1, containers=True)).pairs
        assert [(one.rank, one.uid) for _, one in pairs if one.id == process.id] == [(4321, 0)]
        info = Collector([], containers=True).families()[0]
        assert [of["id"] for _, of, _ in info.samples if of["job_id"] == job] == [process.id]
        end_input(container)
        assert answer(container) == "closed"
        assert seen() == []
        assert container.wait(30) == 0


def test_file_of_run_folder_counts_once_with_its_descriptor(run_dir: Path) -> None:
    file = _engine.StatFile()
    mine = [one for one in statfile.scan(containers=True) if one.id == Path(file.path).stem]
    assert [one.path for one in mine] == [file.path]
    os.unlink(file.path)  # the folder was emptied by hand
    (process,) = [one for one in statfile.scan(containers=True) if one.id == mine[0].id]
    assert process.path.startswith(f"/proc/{os.getpid()}/fd/")
    file.close()


def test_damaged_statistics_files_are_refused(run_dir: Path) -> None:
    file = _engine.StatFile()
    good = Path(file.path).read_bytes()
    damaged = run_dir / "0000000000000000.stat"
    for offset in (0, 8, 44, 48, 52, 56, 64, 72, 80, 84):
        damaged.write_bytes(good[:offset] + b"\xff\xff\xff\x7f" + good[offset + 4 :])
        with pytest.raises(statfile.StatError, match=str(damaged)):
            statfile.read(damaged)
    damaged.write_bytes(good[:64] + bytes(8) + good[72:])  # instances on top of each other
    with pytest.raises(statfile.StatError, match="contradict each other"):
        statfile.read(damaged)
    # Without counters, any number of instances would fit.
    damaged.write_bytes(
        good[:40] + struct.pack("=II", 1 << 20, 0) + good[48:64] + bytes(8) + good[72:]
    )
    with pytest.raises(statfile.StatError, match="contradict each other"):
        statfile.read(damaged)
    # One counter in many instances, and many counters: a reader's dicts would take gigabytes.
    table, size = struct.unpack_from("=II", good, 48)
    for instances, counters in ((1 << 15, 1), (1, 1 << 15)):
        sizes = struct.pack("=IIIIQQ", instances, counters, table, size, len(good), counters * 8)
        names = b"".join(struct.pack("=60sI", b"c%d" % i, 0) for i in range(counters))
        damaged.write_bytes(good[:40] + sizes + good[72:table] + names + bytes(4 << 20))
        with pytest.raises(statfile.StatError, match="contradict each other"):
            statfile.read(damaged)
    for length in (0, 7, 900, 5000):
        damaged.write_bytes(good[:length])
        with pytest.raises(statfile.StatError, match=str(damaged)):
            statfile.read(damaged)
    file.close()


# The links in /proc/PID/fd of a process that may not be dumped belong to root.
HOARDER = """
import ctypes, fcntl, os, sys
user = 20000 + os.getpid() % 40000  # no other test has it
os.setresuid(user, user, user)
ctypes.CDLL(None).prctl(4, int(sys.argv[2]))  # PR_SET_DUMPABLE
for number in range(8):
    file = os.memfd_create(f"{sys.argv[1]}{number:04x}.stat")
    os.write(file, b"HARPSTAT")
    fcntl.flock(file, fcntl.LOCK_EX)
for _ in range(8):
    os.dup(file)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the user: needs root")
@pytest.mark.parametrize("dumpable", [1, 0])
def test_wrong_files_of_a_user_are_bounded(
    monkeypatch: pytest.MonkeyPatch, dumpable: int, run_dir: Path
) -> None:
    """Each costs a reading, once for all its descriptors."""
    stem, looked, read = os.urandom(6).hex(), [], statfile.read

    def count(path: Path, name: str = "", *more: Any) -> statfile.Process:
        looked.append(name)
        return read(path, name, *more)

    monkeypatch.setattr(statfile, "read", count)
    with started(sys.executable, "-c", HOARDER, stem, str(dumpable)) as hoarder:
        assert answer(hoarder) == "ready"
        statfile.scan([], containers=True)
        names = [name for name in looked if name.startswith(stem)]
        assert len(names) == len(set(names)) == 8
        looked.clear()
        monkeypatch.setattr(statfile, "FILES_MOST", 5)
        statfile.scan([], containers=True)
        assert len([name for name in looked if name.startswith(stem)]) == 5
        end_input(hoarder)
        assert hoarder.wait(30) == 0
