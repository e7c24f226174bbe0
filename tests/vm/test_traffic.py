# SPDX-License-Identifier: Apache-2.0
"""NCCL's traffic between a guest and this machine, over the guest's NIC as a packet device.
(test_nic_zero_copy.py has it as a dpdk device.)"""

from __future__ import annotations

from pathlib import Path

import pytest
from dpdk_guest import configured, reduce_together
from guest import DATA, TEST_S, Guest

pytestmark = pytest.mark.timeout(TEST_S)


def test_all_reduce_over_packet_device(guest: Guest, tmp_path: Path) -> None:
    with configured(guest, "--device", f"packet:{DATA.name}"):
        # Odd sizes, so that chunks end anywhere.
        sizes = ("-b", "8", "-e", "1M", "-f", "37", "-n", "2", "-w", "1")
        reduced = reduce_together(guest, tmp_path, sizes)
    assert len(reduced.records) > 3 and reduced.is_right
    assert f"packet {DATA.name}, {DATA.address}/24 (the kernel's)" in reduced.said
