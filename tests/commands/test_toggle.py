# SPDX-License-Identifier: Apache-2.0
"""harp enable and disable: one rename."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("given", ["", "/libnccl-net.so", "/bak.libnccl-net.so"])
def test_off_and_on(given: str, harp: Any, tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libnccl-net.so").write_text("HARP_CONF_DIR")
    for _ in range(2):  # again changes nothing
        assert "bak.libnccl-net.so: disabled" in harp("disable", f"{folder}{given}").stdout
        assert [path.name for path in folder.iterdir()] == ["bak.libnccl-net.so"]
    for _ in range(2):
        assert "/libnccl-net.so: enabled" in harp("enable", f"{folder}{given}").stdout
        assert [path.name for path in folder.iterdir()] == ["libnccl-net.so"]


def test_the_first_on_the_loaders_way(
        harp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libnccl-net.so").write_text("somebody else's")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path / 'absent'}:{folder}")
    assert "not HARP's" in harp("disable").stdout
    harp("enable")
    assert (folder / "libnccl-net.so").is_file()


def test_refusals(harp: Any, tmp_path: Path) -> None:
    assert "holds neither" in harp("enable", str(tmp_path), code=1).stderr
    (tmp_path / "libnccl-net.so").write_text("a")
    (tmp_path / "bak.libnccl-net.so").write_text("b")
    assert "is there beside" in harp("disable", str(tmp_path), code=1).stderr
    assert (tmp_path / "bak.libnccl-net.so").read_text() == "b"
    assert "give a folder, or a file called" in harp("enable", "/etc/passwd", code=2).stderr
