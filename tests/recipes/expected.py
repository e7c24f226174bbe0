# SPDX-License-Identifier: Apache-2.0
"""What the jobs of the recipes print: four ranks, two on each host."""

from __future__ import annotations

import re

from blocks import Block

from harp import paths

HOSTS = ("gpu1", "gpu2")
PLUGIN = str(paths.nccl_plugin_path())


def ranks(said: str, verb: str = "found") -> list[tuple[str, str, str, str]]:
    """Host, rank, ranks and the last word of each train.py, by rank."""
    found = re.findall(rf"(gpu\d): rank (\d+) of (\d+) {verb} (\S+)", said)
    return sorted(found, key=lambda one: one[1])


def placed(word: str) -> list[tuple[str, str, str, str]]:
    """The ranks as they must be, each with this last word."""
    return [(HOSTS[rank // 2], str(rank), "4", word) for rank in range(4)]


def check(block: Block, said: str) -> None:
    """The job's ranks were on both hosts and found the plugin, or added up their tensors; the
    hosts' test found no fault."""
    text = block.text
    if "harp check" in text:
        assert "harp check: 4 ranks" in said and ": good" in said, said
        assert "host 1: gpu2 (10.77.0.2): " in said, said
    if "train.py" in text:
        assert ranks(said) == placed(PLUGIN), said
    if "train_cpu.py" in text:
        assert ranks(said, "summed") == placed("4000"), said
