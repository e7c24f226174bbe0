# SPDX-License-Identifier: Apache-2.0
"""Replies of the agent that have no descriptors: errors, and texts.

An error is the first part of struct harp_agent_reply (dpdk_glue/agent/agent_message.h). A text is
JSON.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Optional

from harp.agent.request import VERSION

MAGIC = 0x48415250
ERROR_SIZE = 512
_HEAD = struct.Struct(f"=IHHi{ERROR_SIZE}s")


def error(number: int, text: str) -> bytes:
    """A reply that fails with an errno (a positive number) and one line of text."""
    line = text.encode(errors="replace")[: ERROR_SIZE - 1]
    return _HEAD.pack(MAGIC, VERSION, 0, -number, line)


def text(value: Any) -> bytes:
    """A reply with a JSON value."""
    return json.dumps(value).encode()


def read_error(data: bytes) -> Optional[tuple[int, str]]:
    """The errno and the line of a reply that fails; None: another reply."""
    if len(data) < _HEAD.size:
        return None
    magic, _, _, result, line = _HEAD.unpack(data[: _HEAD.size])
    if magic != MAGIC or result >= 0:
        return None
    return -result, line.rstrip(b"\0").decode(errors="replace")
