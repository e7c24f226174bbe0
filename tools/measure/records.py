# SPDX-License-Identifier: Apache-2.0
"""Documents of the schema harp.perf/1: a host and its records.

A record is a dictionary with the fields of `harp perf`; null for a field without a meaning. GB are
10^9 bytes.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, List, Optional

SCHEMA = "harp.perf/1"

Record = Dict[str, Any]

FIELDS = (
    "wire",
    "transport",
    "api",
    "op",
    "dtype",
    "size",
    "direction",
    "outstanding",
    "rate_gbs",
    "time_us",
    "algbw_gbs",
    "busbw_gbs",
    "wrong",
    "cpu_s_per_gb",
    "nranks",
    "flows",
    "mtu",
    "offloads",
    "pair",
    "kernel_cc",
    "nsocks",
    "p50_us",
    "p99_us",
    "channels",
    "version",
)


class RecordError(ValueError):
    """The document does not have this schema."""


def make_record(**values: Any) -> Record:
    """A record with these fields; all others are null. Raises RecordError for an unknown field."""
    unknown = set(values) - set(FIELDS)
    if unknown:
        raise RecordError(f"no such fields in {SCHEMA}: {', '.join(sorted(unknown))}")
    return {name: values.get(name) for name in FIELDS}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def describe_host() -> Dict[str, Any]:
    """The facts about this machine that readers of figures need."""
    return {
        "name": platform.node(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "processor": _processor(),
        "processors": os.cpu_count(),
        "system_cc": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def unwritable(path: Path) -> Optional[str]:
    """Why a report cannot be written to this file. A measurement asks before it begins."""
    if path.is_dir():
        return f"{path}: it is a folder"
    if not path.parent.is_dir():
        return f"{path}: there is no folder {path.parent}"
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        return f"{path}: it cannot be written"
    return None


@dataclass
class Document:
    """All records of a run, with other results in `extra`."""

    host: Dict[str, Any] = field(default_factory=describe_host)
    records: List[Record] = field(default_factory=list)
    extra: Dict[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        document = {"schema": SCHEMA, "host": self.host, "records": self.records, **self.extra}
        path.write_text(json.dumps(document, indent=1) + "\n")


def load_records(path: Path) -> List[Record]:
    """The records of a file of `harp perf`. Raises RecordError for another file."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise RecordError(f"{path}: its schema is not {SCHEMA}")
    records: List[Record] = document["records"]
    return records
