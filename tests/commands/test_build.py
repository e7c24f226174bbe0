# SPDX-License-Identifier: Apache-2.0
"""harp build: what it tells meson, for a new folder and for one that exists."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from harp import build, paths

PLAIN = ["-Dbuildtype=release", "-Db_sanitize=none", "-Db_lundef=true"]
DEBUG = ["-Dbuildtype=debug", "-Db_sanitize=address,undefined", "-Db_lundef=false"]


@pytest.mark.parametrize(
    "exists, options, told",
    [
        (False, [], ["setup", *PLAIN, "FOLDER", "SOURCE"]),
        (False, ["--buildtype", "debug", "--sanitize"], ["setup", *DEBUG, "FOLDER", "SOURCE"]),
        (True, ["--buildtype", "debug", "--sanitize"], ["configure", *DEBUG, "FOLDER"]),
        (True, ["--buildtype", "release"], ["configure", *PLAIN, "FOLDER"]),
        (True, [], None),
    ],
)
def test_options_reach_the_build_folder(
    exists: bool,
    options: list[str],
    told: list[str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if exists:
        (tmp_path / "build.ninja").touch()
    ran: list[list[str]] = []
    monkeypatch.setattr(build, "_run", ran.append)
    monkeypatch.setattr(build, "meson", lambda: ["meson"])
    monkeypatch.setenv("HARP_BUILD_DIR", str(tmp_path))
    done = CliRunner().invoke(build.build, options)
    assert done.exit_code == 0, done.output
    places = {"FOLDER": str(tmp_path), "SOURCE": str(Path(paths.PACKAGE).parent)}
    first = [["meson", *(places.get(word, word) for word in told)]] if told else []
    assert ran == [*first, ["meson", "compile", "-C", str(tmp_path)]]
