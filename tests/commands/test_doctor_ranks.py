# SPDX-License-Identifier: Apache-2.0
"""harp doctor compares the running ranks of a host: they must see the same files and network."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from ranks import Rank, Site

from harp.cli import doctor_ranks
from harp.observe import foreign
from tools.hosts.lab import Host, Lab

Start = Callable[..., Rank]
Findings = Callable[..., "list[str]"]


@pytest.fixture
def job() -> dict[str, str]:
    """A launcher's variables, which no other job of this machine has."""
    return {"SLURM_JOB_ID": secrets.token_hex(8), "SLURM_STEP_ID": "0"}


@pytest.fixture
def start(lab: Lab, folders: Path, job: dict[str, str]) -> Iterator[Start]:
    """Starts a rank with HARP; number: the host; name: its configuration folder, which is written
    at first use."""
    (folders / "config" / "ztcp0.conf").write_text("device = packet:eth0\n")
    with ExitStack() as stack:

        def make(number: int = 0, name: str = "config", **environment: str) -> Rank:
            folder = folders / name
            folder.mkdir(exist_ok=True)
            if not list(folder.iterdir()):
                (folder / "ztcp0.conf").write_text("device = packet:eth0\nflows = 2\n")
            prefix = lab.hosts[number].command([])
            own = {"HARP_RUN_DIR": str(folders / "run"), **job, **environment}
            return stack.enter_context(Rank(Site(folder, prefix, own))).init()

        yield make


@pytest.fixture
def findings(lab: Lab, start: Start) -> Findings:
    """Runs doctor on the first host. Returns its findings about ranks, of this level."""

    def run(level: str, host: Host = lab.hosts[0], **environment: str) -> list[str]:
        command = [sys.executable, "-m", "harp", "doctor", "--json"]
        done = host.run(command, environment, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        found = json.loads(done.stdout)["findings"]
        return [one["text"] for one in found if (one["about"], one["level"]) == ("ranks", level)]

    return run


def about(texts: list[str], *ranks: Rank) -> list[str]:
    """Those that name all these ranks; ranks of other tests may run on this machine."""
    pids = [rf"\b{rank.process.pid}\b" for rank in ranks]
    return [text for text in texts if all(re.search(pid, text) for pid in pids)]


def test_equal_ranks_are_no_fault(start: Start, findings: Findings) -> None:
    ranks = [start(), start(HARP_FLOWS="2")]
    assert about(findings("fault"), *ranks[:1]) == []
    assert about(findings("note"), *ranks[:1]) == []


def test_other_network_namespace_is_a_fault(start: Start, findings: Findings) -> None:
    ranks = [start(), start(), start(number=1)]
    (text,) = about(findings("fault"), *ranks)
    first, second = sorted(rank.process.pid for rank in ranks[:2])  # numbers begin again
    third = ranks[2].process.pid
    assert "ranks of one job are in different network namespaces (" in text
    assert f"processes {first}, {second}: net:[" in text and f"process {third}: net:[" in text
    assert text.endswith("start all ranks of a host in one network namespace")
    told = " ".join(findings("note"))  # the ranks of other tests may stand before this one
    assert "in another network namespace, which this check does not see; nsenter --target" in told


def test_rank_elsewhere_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    own = doctor_ranks.view(Path("/proc/self"))
    views = [replace(own, pid=7, network="net:[1]"), replace(own, pid=8)]
    monkeypatch.setattr(doctor_ranks, "running", lambda: views)
    (found,) = doctor_ranks.check()
    assert (found.level, found.text) == (
        "note",
        "process 7 uses HARP in another network namespace, which this check does not see; "
        "nsenter --target 7 --net harp doctor",
    )


def test_other_files_are_a_fault(folders: Path, start: Start, findings: Findings) -> None:
    one, other = start(), start(name="other")
    (text,) = about(findings("fault"), one, other)
    assert f"process {one.process.pid}: {folders}/config" in text
    assert f"process {other.process.pid}: {folders}/other" in text
    assert "give all ranks of a host the same folder" in text
    (told,) = about(findings("note"), other)
    assert told == (
        f"process {other.process.pid} uses HARP with {folders}/other, and this check read other "
        "files; set HARP_CONF_DIR, or run it in their container"
    )


def test_copy_of_the_folder_is_no_fault(folders: Path, start: Start, findings: Findings) -> None:
    """Containers may have the files in folders of their own, or as links."""
    copy = folders / "copy"
    copy.mkdir()
    text = (folders / "config" / "ztcp0.conf").read_text()
    (copy / "..data").write_text(text)
    (copy / "ztcp0.conf").symlink_to("..data")
    ranks = [start(), start(name="copy")]
    assert about(findings("fault"), *ranks) == []
    assert about(findings("note"), *ranks[1:]) == []


def test_folder_of_a_container_is_read_there(
    folders: Path, start: Start, findings: Findings, lab: Lab, job: dict[str, str]
) -> None:
    """The same path in another mount namespace is another folder."""
    one = start()
    other = folders / "other"
    other.mkdir()
    (other / "ztcp0.conf").write_text("device = packet:eth0\nflows = 2\n")
    mount = f'mount --bind {other} {folders}/config && exec "$@"'
    inside = lab.hosts[0].command(["unshare", "--mount", "sh", "-c", mount, "sh"])
    site = Site(folders / "config", inside, {"HARP_RUN_DIR": str(folders / "run"), **job})
    with Rank(site) as rank:
        rank.init()
        (text,) = about(findings("fault"), one, rank)
    assert "ranks of one job read different ztcp*.conf" in text


def test_setting_of_some_ranks_is_a_fault(start: Start, findings: Findings) -> None:
    ranks = [start(), start(HARP_DEVICES="1")]
    (text,) = about(findings("fault"), *ranks)
    first, second = (rank.process.pid for rank in ranks)
    assert "ranks of one job have different values of HARP_DEVICES (" in text
    assert f"process {first}: unset" in text and f"process {second}: 1" in text


def test_ranks_of_other_jobs_may_differ(start: Start, findings: Findings) -> None:
    """Each job may have its own NICs."""
    ranks = [start(), start(name="other", SLURM_JOB_ID="7"), start(name="third", SLURM_JOB_ID="")]
    for rank in ranks:
        assert about(findings("fault"), rank) == []


def test_other_hosts_of_one_machine_may_differ(
    folders: Path, start: Start, findings: Findings, lab: Lab, job: dict[str, str]
) -> None:
    """NCCL tells hosts apart by name: a container with a name of its own is another host."""
    one = start()
    folder = folders / "other"
    folder.mkdir()
    (folder / "ztcp0.conf").write_text("device = packet:eth0\n")
    inside = lab.hosts[1].command(["unshare", "--uts"])
    with Rank(Site(folder, inside, {"HARP_RUN_DIR": str(folders / "run"), **job})) as rank:
        rank.init()
        assert about(findings("fault"), one) == []


def test_folder_name_cannot_control_the_terminal(
    folders: Path, start: Start, findings: Findings
) -> None:
    ranks = [start(), start(name="title\x1b]0;x\x07")]
    (text,) = about(findings("fault"), *ranks)
    assert text.isprintable() and "title\\x1b]0;x\\x07" in text


def test_many_processes_are_abbreviated(monkeypatch: pytest.MonkeyPatch) -> None:
    own = doctor_ranks.view(Path("/proc/self"))
    views = [replace(own, pid=pid) for pid in range(1, 7)]
    monkeypatch.setattr(doctor_ranks, "running", lambda: views)
    (found,) = doctor_ranks.check()
    assert (found.level, found.text) == (
        "ok",
        "processes 1, 2, 3, 4 and 2 more use HARP with the files and in the network namespace of "
        "this check",
    )
    views[:] = views[:1]
    (found,) = doctor_ranks.check()
    assert found.text.startswith("process 1 uses HARP with")
    views.clear()
    assert list(doctor_ranks.check()) == []


# -- processes of users who may want to stop root's doctor

MAPS = """
import mmap, os, sys
with open(sys.argv[1], "rb") as file:
    kept = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print("ready", flush=True)
sys.stdin.read()
"""

LOOKS = """
import sys
from pathlib import Path
from harp.cli import doctor_ranks
from harp.observe import foreign
doctor_ranks.PROC = Path(sys.argv[1])
print([one.pid for one in doctor_ranks.running()])
"""


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[Callable[[Path], int]]:
    """Starts a process that maps a file as a library is mapped; its pid."""
    with ExitStack() as stack:

        def make(path: Path) -> int:
            process = subprocess.Popen(
                [sys.executable, "-c", MAPS, path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "HARP_CONF_DIR": str(tmp_path)},
            )
            stack.enter_context(process)  # closes its input at the end
            assert process.stdout and process.stdout.readline() == "ready\n"
            return process.pid

        yield make


def library(path: Path) -> Path:
    """A file that looks like HARP's plugin."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\0" * 4096 + b"HARP_CONF_DIR\0")
    return path


def looked(proc: Path = doctor_ranks.PROC) -> list[int]:
    """The processes that doctor finds. It runs in a process that can be ended if it hangs."""
    done = subprocess.run(
        [sys.executable, "-c", LOOKS, proc], capture_output=True, text=True, timeout=60, check=True
    )
    return list(json.loads(done.stdout))


def test_space_in_path_leads_to_no_other_file(
    tmp_path: Path, mapped: Callable[[Path], int]
) -> None:
    """The end of the path is a path, too, and a FIFO there would never end."""
    name = "libnccl-net-x.so"
    os.mkfifo(tmp_path / name)
    pid = mapped(library(Path(f"{tmp_path}/a {tmp_path}/{name}")))
    assert pid in looked()


@pytest.mark.parametrize("kind", ["fifo", "large"])
def test_other_file_in_place_of_library_is_not_read(kind: str, tmp_path: Path) -> None:
    """A process may have mounts of its own."""
    process = tmp_path / "7"
    path = library(process / "root/lib/libnccl-net.so")
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    else:
        with open(path, "wb") as file:
            file.truncate(1 << 40)
    (process / "maps").write_text("7f00-7f01 r--p 00000000 08:01 7    /lib/libnccl-net.so\n")
    assert looked(tmp_path) == []


def process_with_libraries(proc: Path, pid: int, user: int, names: list[str], size: int) -> None:
    """What /proc has of a user's process that maps false plugins. They are sparse files."""
    process = proc / str(pid)
    lines = []
    for name in names:
        path = process / "root/lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(size)
        lines.append(f"7f00-7f01 r--p 00000000 08:01 7    /lib/{name}\n")
    (process / "maps").write_text("".join(lines))
    (process / "status").write_text(f"Name:\trank\nUid:\t{user}\t0\t0\t0\n")


def test_libraries_of_a_user_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their number in a process, and by their bytes in all processes of the user."""
    read: list[str] = []

    def content(path: Path, fd: int, most: int) -> bytes:
        read.append("/".join(path.relative_to(tmp_path).parts[::3]))
        return b""

    monkeypatch.setattr(foreign, "read_fd", content)
    monkeypatch.setattr(doctor_ranks, "PROC", tmp_path)
    names = [f"libnccl-net-{number:02}.so" for number in range(10)]
    process_with_libraries(tmp_path, 1, 7, names, 100)
    for pid in range(2, 14):
        process_with_libraries(tmp_path, pid, 8, names[:1], 50 << 20)
    process_with_libraries(tmp_path, 14, 9, names[:1], 50 << 20)
    assert doctor_ranks.running() == []
    assert sorted(name for name in read if name.startswith("1/")) == [f"1/{n}" for n in names[:8]]
    assert len(read) == 8 + 512 // 50 + 1 and f"14/{names[0]}" in read


def test_device_in_place_of_configuration_is_not_opened(tmp_path: Path) -> None:
    """The open of a socket fails, as that of a device without a driver does."""
    (tmp_path / "ztcp0.conf").symlink_to("place")
    with closing(socket.socket(socket.AF_UNIX)) as place:
        place.bind(str(tmp_path / "place"))
        ((name, found),) = doctor_ranks._files(tmp_path)
    assert name == "ztcp0.conf" and found.endswith("not a regular file")
