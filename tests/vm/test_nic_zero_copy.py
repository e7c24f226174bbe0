# SPDX-License-Identifier: Apache-2.0
"""An all_reduce over the guest's NIC as a dpdk device: no byte is copied before the NIC reads it.
Without an IOMMU, this holds only for pages that the kernel does not move; other data is copied and
counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from dpdk_guest import Reduced, reduce_together
from guest import DATA, TEST_S, Guest

pytestmark = pytest.mark.timeout(TEST_S)

# Chunks and references end anywhere. Each message is half of a size: HARP copies those of at most
# 32 KiB.
SIZES = ("-b", "70004", "-e", "1M", "-f", "2", "-n", "2", "-w", "1")
LEAST = 3 * sum(70004 * 2**i for i in range(4))  # an all_reduce of two sends each byte once


def check_sums(reduced: Reduced) -> int:
    """Checks the sums, and that they used the dpdk device. Returns the payload sent, in bytes."""
    assert len(reduced.records) > 3 and reduced.is_right
    assert f"dpdk {DATA.pci_id} (net_virtio), {DATA.address}/24" in reduced.said
    payload = reduced.counters["message_bytes_out"]
    assert payload >= LEAST
    return payload


def assert_read_in_place(reduced: Reduced) -> None:
    payload, counters = check_sums(reduced), reduced.counters
    assert counters["tx_copied_bytes"] == 0
    # The NIC reads retransmitted data again.
    assert payload <= counters["tx_zero_copy_bytes"] <= payload + counters["tcp_retransmit_bytes"]


def test_all_reduce_refers_to_memory_only_with_iommu(given: Guest, tmp_path: Path) -> None:
    reduced = reduce_together(given, tmp_path, SIZES)
    if given.iommu:
        assert_read_in_place(reduced)
        return
    payload, counters = check_sums(reduced), reduced.counters
    assert counters["tx_zero_copy_bytes"] == 0
    # The shortest pieces are copied without being counted, like HARP's headers.
    assert counters["tx_copied_bytes"] >= payload - 1024


def test_all_reduce_refers_to_hugepages(given: Guest, tmp_path: Path) -> None:
    reduced = reduce_together(given, tmp_path, SIZES, "--hugepages")
    assert_read_in_place(reduced)
