# SPDX-License-Identifier: Apache-2.0
"""Statistics files and traces of other users cannot send control characters to root's terminal,
change Prometheus' metrics, or pretend to be another user's."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harp.observe import foreign, statfile
from harp.testing import _engine

OTHER_USER = 12345
TITLE = b"\x1b]0\x07"  # sets the title of a terminal's window
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away: needs root")


def corrupt(path: str, find: bytes, become: bytes) -> None:
    """Replaces a text by another of the same length, everywhere in the file."""
    data = Path(path).read_bytes()
    assert find in data and len(find) == len(become)
    with open(path, "r+b") as file:
        file.write(data.replace(find, become))


@pytest.fixture
def published(folders: Path) -> Iterator[_engine.StatFile]:
    file = _engine.StatFile(device=b"packet:" + TITLE, about="right\u202eleft".encode())
    name = Path("/proc/self/comm").read_bytes().strip()  # "python", or "pytest"
    corrupt(file.path, name, b"\x1b]0;x\x07".ljust(len(name))[: len(name)])
    yield file
    file.close()


@pytest.mark.parametrize(
    "args",
    [["stat"], ["stat", "--prometheus"], ["stat", "--json"], ["top", "-n", "1", "-d", "0.1"]],
)
def test_statistics_output_has_no_control_characters(
    harp: Any, published: Any, args: list[str]
) -> None:
    said = harp(*args).stdout
    assert "packet:" in said
    assert [char for char in said if not char.isprintable() and char != "\n"] == []


def test_trace_output_has_no_control_characters(harp: Any, folders: Path) -> None:
    code = (
        "from harp.testing import _engine\nring = _engine.Trace(8)\n"
        "ring.record(1000, 1, 0, 1, 2)\nprint(_engine.dump([ring], b'\\x1b]0\\x07', 4000))\n"
    )
    path = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()
    corrupt(path, b"poll", TITLE)
    said = harp("stat", "--all-events", "--trace", path).stdout
    assert [char for char in said if not char.isprintable() and char != "\n"] == []


@needs_root
def test_process_uid_is_file_owner(harp: Any, published: _engine.StatFile) -> None:
    os.chown(published.path, OTHER_USER, -1)
    (process,) = json.loads(harp("stat", "--json").stdout)["processes"]
    assert process["uid"] == OTHER_USER
    assert f"user {OTHER_USER}" in harp("stat").stdout


def test_counter_name_cannot_inject_prometheus_line(harp: Any, folders: Path) -> None:
    file = _engine.StatFile()
    corrupt(file.path, b"tx_bytes\0\0\0", b"x 1\nharp_y ")
    with pytest.raises(statfile.StatError, match="damaged"):
        statfile.read(Path(file.path))
    assert "harp_y" not in harp("stat", "--prometheus").stdout
    file.close()


def test_one_file_cannot_change_prometheus_types(harp: Any, folders: Path) -> None:
    honest, forged = _engine.StatFile(), _engine.StatFile()
    names = list(statfile.read(Path(honest.path)).kinds)
    data = bytearray(Path(forged.path).read_bytes())
    table = struct.unpack_from("=I", data, 48)[0]
    place = table + names.index("rx_bytes") * 64
    # A gauge of that name would get the family name of the real counter.
    data[place : place + 64] = struct.pack("=60sI", b"tx_bytes_total", 1)
    place = table + names.index("tx_frames") * 64
    struct.pack_into("=I", data, place + 60, 1)
    Path(forged.path).open("r+b").write(data)
    lines = harp("stat", "--prometheus").stdout.splitlines()
    types = [line for line in lines if line.startswith("# TYPE")]
    assert len(types) == len({line.split()[2] for line in types})
    identity = Path(honest.path).stem
    for family in ("tx_bytes", "tx_frames", "rx_bytes"):
        assert f"# TYPE harp_{family}_total counter" in types
        assert any(line.startswith(f"harp_{family}_total{{") and identity in line for line in lines)
    honest.close()
    forged.close()


TRUNCATER = """
import os, sys
print("ready", flush=True)
while True:
    os.truncate(sys.argv[1], 0)
    os.truncate(sys.argv[1], int(sys.argv[2]))
    with open(sys.argv[1], "r+b") as file:
        file.write(open(sys.argv[3], "rb").read())
"""

READER = """
import sys
from pathlib import Path
from harp.observe import statfile
found = set()
for _ in range(2000):
    try:
        found.add(len(statfile.read(Path(sys.argv[1])).instances))
    except statfile.StatError:
        found.add("damaged")
print(sorted(map(str, found)))
"""


def test_reader_survives_truncated_file(folders: Path) -> None:
    file = _engine.StatFile()
    copy = folders / "copy"
    copy.write_bytes(Path(file.path).read_bytes())
    victim = folders / "0123456789abcdef.stat"
    victim.write_bytes(copy.read_bytes())
    truncater = subprocess.Popen(
        [sys.executable, "-c", TRUNCATER, victim, str(copy.stat().st_size), copy],
        text=True,
        stdout=subprocess.PIPE,
    )
    try:
        assert truncater.stdout and truncater.stdout.readline()
        reader = subprocess.run(
            [sys.executable, "-c", READER, victim], text=True, timeout=100, capture_output=True
        )
        assert reader.returncode != -signal.SIGBUS, "SIGBUS"
        assert reader.returncode == 0, reader.stderr
        assert "damaged" in reader.stdout
    finally:
        truncater.kill()
        truncater.communicate(timeout=20)
    file.close()


def test_fifo_and_device_are_refused(folders: Path) -> None:
    pipe = folders / "0123456789abcdef.stat"
    os.mkfifo(pipe)
    with pytest.raises(statfile.StatError, match="not a regular file"):
        statfile.read(pipe)
    with pytest.raises(foreign.ForeignError, match="not a regular file"):
        foreign.read(Path("/dev/zero"), 100)


def test_oversized_file_is_refused(folders: Path) -> None:
    large = folders / "0123456789abcdef.stat"
    with open(large, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(statfile.StatError, match="too many"):
        statfile.read(large)


def test_fallback_folder_belongs_to_its_user(
    harp: Any, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user may make files in /dev/shm, but cannot own a folder as another user."""
    shm = folders / "shm"
    mine = f"harp-{os.geteuid()}"
    random = [f"{mine}-{number:016x}" for number in range(9)]
    names = ["harp-" + "7" * 9, mine, "harp-0\x1b[2J", "harp-1x", f"{mine}-0", *random]
    for name in names:
        (shm / name).mkdir(parents=True)
    (shm / "harp-1").symlink_to(folders)
    monkeypatch.setattr(statfile, "SHARED_MEMORY", shm)
    assert statfile.folders()[1:] == [shm / mine, *(shm / name for name in random[:7])]
