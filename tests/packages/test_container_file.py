# SPDX-License-Identifier: Apache-2.0
"""The container file builds a wheel and a runtime layer from a bare Debian, and an image of a user
runs the layer.

    HARP_TEST_FULL=1 pytest tests/packages/test_container_file.py

It needs buildah and debootstrap, and takes ten minutes.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from clean_system import SYSTEMS, make_system, run

ROOT = Path(__file__).resolve().parents[2]
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
CONTEXT = ROOT / "tools/packages/Containerfile.containerignore"

STORAGE = """
[storage]
driver = "vfs"
graphroot = "{folder}/graph"
runroot = "{folder}/run"
"""

LOAD = """
import ctypes
ctypes.CDLL("libnccl-net.so")
print([line.split()[-1] for line in open("/proc/self/maps") if "nccl-net" in line][0])
"""


def test_context_leaves_out_what_git_ignores() -> None:
    """A build of this host must not get into the image."""
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().split()}
    left_out = {line.removeprefix("**/") for line in CONTEXT.read_text().split("\n")[1:-1]}
    assert ignored | {".git"} == left_out


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("HARP_TEST_FULL"), reason="takes minutes; HARP_TEST_FULL=1")
@pytest.mark.skipif(not shutil.which("buildah"), reason="no buildah here: apt-get install buildah")
@pytest.mark.timeout(3600)
def test_image_is_built_from_bare_system_and_serves_an_image_of_a_user(tmp_path: Path) -> None:
    (tmp_path / "storage.conf").write_text(STORAGE.format(folder=tmp_path))
    more = {
        "BUILDAH_ISOLATION": "chroot",
        "CONTAINERS_STORAGE_CONF": str(tmp_path / "storage.conf"),
        "BASE": "localhost/bare",
    }
    # The image knows the index and the certificates that this machine has for pip.
    site = [f"PIP_CERT={CERTIFICATES.with_name('site.crt')}"]
    site += [f"{name}={text}" for name, text in os.environ.items() if name == "PIP_INDEX_URL"]

    def buildah(*args: str | Path) -> str:
        return run("buildah", *args, timeout=3000, more=more).strip()

    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, make_system("bookworm", SYSTEMS / "bare", ()), "/")
    buildah("add", "--quiet", container, CERTIFICATES, CERTIFICATES.with_name("site.crt"))
    for one in site:
        buildah("config", "--env", one, container)
    buildah("commit", "--quiet", "--rm", container, "bare")

    run(ROOT / "tools/package", "container", timeout=3000, more=more)
    page = (ROOT / "docs/install.md").read_text()
    (lines,) = re.findall(r"^```dockerfile\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "load.py").write_text(LOAD)
    (tmp_path / "Containerfile").write_text(
        "FROM bare\nRUN apt-get update && apt-get install -y --no-install-recommends python3\n"
        f"{lines}COPY load.py /\nRUN harp --version && harprun python3 /load.py\n"
    )
    said = buildah("bud", "--tag", "user", "--file", tmp_path / "Containerfile", tmp_path)
    assert "DPDK 22.11" in said and "/opt/harp/python/harp/libnccl-net-harp.so" in said, said
