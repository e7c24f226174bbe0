# SPDX-License-Identifier: Apache-2.0
"""Whoever can read a ztcp*.conf can hold its lock: the line that declines says who does."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harp import _tables

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user: needs root")

OTHER_USER = 12345
OWN = "device = packet:eth0\naddress = 10.0.0.1/24\n"

# Another user, who may only read, under a name that a terminal would obey.
HOLDER = f"""
import ctypes, fcntl, os, sys
os.setgroups([]); os.setgid({OTHER_USER}); os.setuid({OTHER_USER})
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_SH)
assert ctypes.CDLL(None).prctl(15, b"bad\\x1b[2Jname", 0, 0, 0) == 0
print("holds", flush=True)
sys.stdin.read()
"""


def held(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout and process.stdout.readline() == "holds\n"
    return process


def said(holder: subprocess.Popen[str]) -> str:
    return f"ztcp0.conf by process {holder.pid} (bad?[2Jname) of user {OTHER_USER}; "


@pytest.fixture
def open_folders() -> Iterator[Path]:
    """A folder that others may look into."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_lock_holder_of_other_user_is_named(
    open_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (open_folders / "ztcp0.conf").write_text(OWN)
    monkeypatch.setenv("HARP_CONF_DIR", str(open_folders))
    holder = held(open_folders / "ztcp0.conf")
    try:
        with pytest.raises(_tables.ConfigError) as caught:
            _tables.Claim()
        assert said(holder) in str(caught.value)
    finally:
        holder.communicate(timeout=20)


# Claims in a folder of an overlay, as a container's are, while another holds the lock.
ON_AN_OVERLAY = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_lock_holder as held
from harp import _tables
holder = held.held(Path(sys.argv[1]) / "ztcp0.conf")
try:
    _tables.Claim()
except _tables.ConfigError as declined:
    assert held.said(holder) in str(declined), declined
    print("named")
holder.communicate(timeout=20)
"""

MOUNT = """
mount -t tmpfs none "$0/over" && mkdir "$0/over/up" "$0/over/work" "$0/over/all" &&
mount -t overlay none -o "lowerdir=$0/low,upperdir=$0/over/up,workdir=$0/over/work" \
  "$0/over/all" || exit 77
HARP_CONF_DIR=$0/over/all exec "$1" -c "$2" "$0/over/all" "$3"
"""


def test_lock_holder_on_overlayfs_is_named(open_folders: Path) -> None:
    """There, /proc/locks and stat have two opinions of the file's device."""
    for name in ("low", "over"):
        (open_folders / name).mkdir()
    (open_folders / "low/ztcp0.conf").write_text(OWN)
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", MOUNT, open_folders, sys.executable, ON_AN_OVERLAY,
         str(Path(__file__).parent)], capture_output=True, text=True, timeout=60)  # fmt: skip
    if done.returncode == 77:
        pytest.skip(f"no overlay can be mounted here: {done.stderr}")
    assert done.stdout == "named\n", done.stderr
