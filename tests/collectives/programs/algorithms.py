# SPDX-License-Identifier: Apache-2.0
"""All_reduce of ranks that use links, by each algorithm. Prints a line of JSON with what each rank
of 2, 3 and 4 told: which classes of sizes can use an algorithm, and what went wrong.

Usage: algorithms.py LIBRARY PLUGIN
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from c_library import error, library
from host_ranks import AVERAGE, SUM, Group, play

ALGORITHMS = ["doubling", "pairwise", "halving", "ring"]
CLASSES = range(-1, 10)  # of sizes: 1 to 7 have a choice
COUNTS = [9_000, 40_000, 300_001]  # elements of 4 bytes


def possible(rank: Group, algorithm: int, wide: bool) -> list[int]:
    """Chooses the algorithm for all sizes. Returns the classes that can use it."""
    choose = library.harp_group_choose
    found = [each for each in CLASSES if choose(rank.group, wide, each, algorithm) >= 0]
    assert all(choose(rank.group, wide, each, algorithm) == algorithm for each in found)
    return found


def reduce_all(rank: Group) -> Iterator[str]:
    for count in COUNTS:
        rows = [np.arange(count, dtype=np.float32) % 64 * (each + 1) for each in range(rank.ranks)]
        for reduction, right in ((SUM, sum(rows)), (AVERAGE, sum(rows) / np.float32(rank.ranks))):
            mine = rows[rank.number].copy()
            if rank.all_reduce(mine, reduction) != 1:
                yield error.value.decode()
            elif not np.allclose(mine, right, rtol=1e-6):
                yield f"{count} elements, reduction {reduction}"


def each_algorithm(rank: Group) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for number, name in enumerate(ALGORITHMS):
        plain, wide = (possible(rank, number, each) for each in (False, True))
        told[name] = {"plain": plain, "wide": wide, "wrong": list(reduce_all(rank))}
    unknown = possible(rank, len(ALGORITHMS), False) + possible(rank, -1, True)
    return {**told, "unknown": unknown}


def main() -> None:
    os.environ["HARP_SHARED_MEMORY"] = "0"
    print(json.dumps({str(ranks): play(each_algorithm, ranks, {}) for ranks in (2, 3, 4)}))


main()
