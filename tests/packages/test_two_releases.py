# SPDX-License-Identifier: Apache-2.0
"""Two releases in one job, as an upgrade host by host has them. There is no tag yet, so the older
release is the last commit of each earlier wire version. Its plugin is built once and kept.
docs/operate.md has the rules of an upgrade:

    HARP_TEST_FULL=1 pytest tests/packages/test_two_releases.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from test_clean_system import wait_for_all

from harp import paths
from tools.hosts.lab import Lab
from tools.hosts.lab_fixtures import lab

__all__ = ["lab"]

ROOT = Path(__file__).resolve().parents[2]
RELEASES = ROOT / "build-releases"  # kept for the next run; only its owner writes to the checkout
LAST_OF = {1: "f8365191", 2: "2c583bd2"}  # wire version: commit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("HARP_TEST_FULL"), reason="builds older releases; HARP_TEST_FULL=1"
    ),
    pytest.mark.timeout(1800),
]


def older_plugin(commit: str) -> Path:
    """The plugin of an older commit, built if it is missing."""
    plugin = RELEASES / commit / "libnccl-net.so"
    if plugin.is_file():
        return plugin
    meson = shutil.which("meson")
    source = subprocess.run(
        ["git", "-C", ROOT, "archive", commit], capture_output=True, timeout=60, check=False
    )
    if meson is None or source.returncode:
        pytest.skip(f"no meson, or a clone without commit {commit}: git fetch --unshallow")
    plugin.parent.mkdir(parents=True, exist_ok=True)
    # Each run has a folder of its own, because two runs may build at once.
    with tempfile.TemporaryDirectory(dir=RELEASES) as folder:
        subprocess.run(["tar", "-x", "-C", folder], input=source.stdout, timeout=60, check=True)
        build = Path(folder) / "build"
        for args in ([meson, "setup", "-Ddpdk=disabled", build, folder],
                      ["ninja", "-C", build, "plugin/libnccl-net.so"]):  # fmt: skip
            done = subprocess.run(args, capture_output=True, text=True, timeout=900, check=False)
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr
        (build / "plugin/libnccl-net.so").replace(plugin)
    return plugin


@pytest.mark.parametrize("checksum", ["0", "1"])
@pytest.mark.parametrize("older", [0, 1], ids=["older-rank-0", "older-rank-1"])
@pytest.mark.parametrize("version", LAST_OF)
def test_hosts_of_two_releases_do_a_job(
    lab: Lab, tmp_path: Path, version: int, older: int, checksum: str
) -> None:
    plugins = [str(paths.nccl_plugin_path())] * 2
    plugins[older] = str(older_plugin(LAST_OF[version]))
    ranks = []
    for i, host in enumerate(lab.hosts):
        conf, run = tmp_path / f"conf{i}", tmp_path / f"run{i}"
        conf.mkdir()
        run.mkdir()
        (conf / "ztcp0.conf").write_text("device = packet:eth0\n")
        args = [sys.executable, "-m", "harp", "perf", "sendrecv_bidir", "--plugin", plugins[i]]
        args += ["-b", "8", "-e", "2M", "-f", "64", "-n", "20", "--nranks", "2", "--rank", str(i)]
        args += ["--rendezvous", f"{lab.hosts[0].address}:5000"]
        environment = {"HARP_CONF_DIR": str(conf), "HARP_RUN_DIR": str(run),
                       "HARP_CHECKSUM": checksum, "NCCL_DEBUG": "INFO"}  # fmt: skip
        ranks.append(
            host.popen(args, environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       text=True)
        )  # fmt: skip
    # perf has verified every byte, or a rank's exit status is not 0.
    outputs = wait_for_all(ranks)
    assert all("NCCL INFO HARP 0.1.0: packet:eth0" in output for output in outputs), outputs
    assert f"HARP by {plugins[0]} " in outputs[0]
    assert "2097152" in outputs[0]
