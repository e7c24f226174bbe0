# SPDX-License-Identifier: Apache-2.0
"""NCCL itself finds the plugin and maps it, and no longer once it is renamed or gone.

No GPU is needed: these releases open the plugin in ncclGetUniqueId. The wheels
are fetched once into the build folder; of each only the library is kept.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("HARP_BUILD_DIR") or ROOT / "build")
WHEELS = ("nvidia-nccl-cu11==2.14.*", "nvidia-nccl-cu12==2.21.*")
PLUGINS = ("plugin/libnccl-net.so", "harp/bench/kernel/libnccl-net-kernel.so")
UNREACHABLE = re.compile(
    "NewConnectionError|ConnectTimeoutError|Max retries|Retrying|name resolution|"
    "Network is unreachable|ProxyError|ReadTimeoutError|HTTP error 5[0-9][0-9]|"
    "5[0-9][0-9] Server Error|IncompleteRead|Connection broken"
)

CHILD = """
import ctypes, json, sys
nccl = ctypes.CDLL(sys.argv[1])
result = nccl.ncclGetUniqueId(ctypes.create_string_buffer(128))
with open("/proc/self/maps") as maps:
    files = {line[line.index("/"):].strip() for line in maps if "/" in line}
print("RESULT " + json.dumps([result, sorted(f for f in files if "nccl-net" in f)]))
"""


def library_of(requirement: str) -> Path:
    """libnccl.so.2 of a wheel, from the cache or the package registry."""
    target = BUILD / "nccl" / re.sub(r"[^\w.-]+", "-", requirement) / "libnccl.so.2"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.parent / f"fetch-{os.getpid()}"
    try:
        download(requirement, scratch)
        (wheel,) = scratch.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (n for n in archive.namelist() if n.endswith("/libnccl.so.2"))
            archive.extract(name, scratch)
        (scratch / name).rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def download(requirement: str, folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--timeout", "20", "--retries", "1", "--dest", str(folder), requirement],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode and UNREACHABLE.search(done.stdout + done.stderr):
        pytest.skip(f"the package registry is unreachable, so {requirement} cannot be fetched")
    assert done.returncode == 0, f"pip could not fetch {requirement}:\n{done.stderr}"


def mapped(nccl: Path, **environment: str) -> list[str]:
    """The files named *nccl-net* that a process maps after ncclGetUniqueId."""
    drop = ("NCCL_", "HARP_", "LD_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    env.update(NCCL_SOCKET_IFNAME="lo", NCCL_DEBUG="INFO", NCCL_CONF_FILE="/dev/null")
    env.update(environment)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(nccl)],
        env=env, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    found = re.search(r"^RESULT (.*)$", done.stdout, re.MULTILINE)
    assert found, f"the child ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    result, files = json.loads(found[1])
    assert result == 0, f"ncclGetUniqueId returned {result}:\n{done.stdout}{done.stderr}"
    return files


@pytest.fixture(params=PLUGINS, ids=lambda path: Path(path).name)
def plugin(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The built plugin in a folder of its own, under the name that NCCL looks for."""
    built = BUILD / request.param
    if not built.exists():
        pytest.skip(f"{built} is not built: meson setup build && meson compile -C build")
    if b"libasan.so" in built.read_bytes():
        pytest.skip("Python cannot load a library with sanitizers by itself")
    folder = tmp_path / "lib"
    folder.mkdir()
    return Path(shutil.copy(built, folder / "libnccl-net.so"))


@pytest.mark.quick_cases(1)
@pytest.mark.timeout(700)
@pytest.mark.parametrize("wheel", [pytest.param(WHEELS[0], marks=pytest.mark.slow), WHEELS[1]])
def test_nccl_loads_plugin_by_search_path(wheel: str, plugin: Path, tmp_path: Path) -> None:
    nccl = library_of(wheel)
    search = {"LD_LIBRARY_PATH": str(plugin.parent)}
    assert mapped(nccl, **search) == [str(plugin)]

    off = plugin.rename(plugin.with_name("bak.libnccl-net.so"))
    assert mapped(nccl, **search) == []

    off.rename(plugin)
    assert mapped(nccl, **search) == [str(plugin)]

    plugin.rename(tmp_path / "libnccl-net.so")
    assert mapped(nccl, **search) == []


@pytest.mark.timeout(700)
def test_nccl_loads_plugin_by_absolute_path(plugin: Path, tmp_path: Path) -> None:
    nccl = library_of(WHEELS[1])
    name = {"NCCL_NET_PLUGIN": str(plugin)}
    assert mapped(nccl, **name) == [str(plugin)]

    off = plugin.rename(plugin.with_name("bak.libnccl-net.so"))
    assert mapped(nccl, **name) == []

    off.rename(tmp_path / "libnccl-net.so")
    assert mapped(nccl, **name) == []
