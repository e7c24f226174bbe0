# SPDX-License-Identifier: Apache-2.0
"""The packages that ./tools/package has made."""

from pathlib import Path

DIST = Path(__file__).resolve().parents[2] / "dist"


def newest(pattern: str) -> Path:
    """The newest package of dist/ with such a name."""
    found = sorted(DIST.glob(pattern), key=lambda path: path.stat().st_mtime)
    kind = pattern.rpartition(".")[2]
    command = {"whl": "wheel-arm64" if pattern.startswith("arm64/") else "wheel"}.get(kind, kind)
    assert found, f"dist/ has no {pattern}: ./tools/package {command}"
    return found[-1]
