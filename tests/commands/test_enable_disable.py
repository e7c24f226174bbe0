# SPDX-License-Identifier: Apache-2.0
"""harp enable and disable rename the plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("given", ["", "/libnccl-net.so", "/bak.libnccl-net.so"])
def test_disable_and_enable_rename_plugin(given: str, harp: Any, tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libnccl-net.so").write_text("HARP_CONF_DIR")
    for _ in range(2):  # a repetition changes nothing
        assert "bak.libnccl-net.so: disabled" in harp("disable", f"{folder}{given}").stdout
        assert [path.name for path in folder.iterdir()] == ["bak.libnccl-net.so"]
    for _ in range(2):
        assert "/libnccl-net.so: enabled" in harp("enable", f"{folder}{given}").stdout
        assert [path.name for path in folder.iterdir()] == ["libnccl-net.so"]


def test_first_harp_plugin_on_search_path_is_renamed(
    harp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other vendors' plugins before and after it are not renamed."""
    folders = [tmp_path / name for name in ("absent", "before", "lib", "behind")]
    for folder in folders[1:]:
        folder.mkdir()
        text = "HARP_CONF_DIR" if folder.name == "lib" else "somebody else's"
        (folder / "libnccl-net.so").write_text(text)
    monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(map(str, folders)))
    assert "lib/bak.libnccl-net.so: disabled" in harp("disable").stdout
    assert "lib/bak.libnccl-net.so: disabled already" in harp("disable").stdout
    assert "lib/libnccl-net.so: enabled" in harp("enable").stdout
    for folder in folders[1:]:
        assert [path.name for path in folder.iterdir()] == ["libnccl-net.so"]


@pytest.mark.parametrize(
    "name, command", [("libnccl-net.so", "disable"), ("bak.libnccl-net.so", "enable")]
)
def test_plugin_of_other_vendor_is_not_renamed(
    name: str, command: str, harp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_text("somebody else's")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    said = harp(command, code=1).stderr
    assert f"not HARP's: {tmp_path / name}" in said and "leave harprun out" in said
    assert "another vendor's plugin" in harp(command, str(tmp_path), code=1).stderr
    assert (tmp_path / name).is_file()


def test_invalid_requests_are_refused(harp: Any, tmp_path: Path) -> None:
    assert "holds neither" in harp("enable", str(tmp_path), code=1).stderr
    (tmp_path / "libnccl-net.so").write_text("HARP_CONF_DIR a")
    (tmp_path / "bak.libnccl-net.so").write_text("HARP_CONF_DIR b")
    assert "holds both" in harp("disable", str(tmp_path), code=1).stderr
    assert (tmp_path / "bak.libnccl-net.so").read_text() == "HARP_CONF_DIR b"
    assert "give a folder, or a file named" in harp("enable", "/etc/passwd", code=2).stderr
