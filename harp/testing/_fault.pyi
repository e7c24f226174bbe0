# SPDX-License-Identifier: Apache-2.0
from typing import NamedTuple

class Verdict(NamedTuple):
    drop: bool
    duplicate: bool
    corrupt: bool
    late: bool
    choice: int

class Lane:
    def __init__(self, faults: str) -> None: ...
    def judge(self, frame: bytes) -> Verdict: ...

def corrupted(frame: bytes, choice: int) -> bytes: ...
