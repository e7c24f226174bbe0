# SPDX-License-Identifier: Apache-2.0
"""The cards by which the ranks of a group find each other."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch


class Store(dict[str, bytes]):
    """torch's store, of one process."""

    set = dict.__setitem__


def test_rank_of_another_release_is_named() -> None:
    """Ranks of two releases may cut or order messages in different ways."""
    from harp.torch import library, rendezvous

    store = Store()
    for rank in range(2):
        card = rendezvous.Card("gpu", bytes(library.HANDLE))
        rendezvous.publish(store, rank, card)
    assert [card.host for card in rendezvous.collect(store, 2)] == ["gpu", "gpu"]
    store["harp/1"] = store["harp/1"].replace(b"HARP2", b"HARP1")
    with pytest.raises(library.HarpError, match="rank 1 runs another release of harp.torch"):
        rendezvous.collect(store, 2)
