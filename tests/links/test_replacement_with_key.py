# SPDX-License-Identifier: Apache-2.0
"""A connection that replaces another must prove the key, like the first one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from jobs import over
from ranks import START_S, wait_until

from tools.hosts.jobs import Joint, all_reduce, job

ROUNDS = 3


@pytest.mark.slow
@over("join,", ("wire",))
def test_repeated_replacement_proves_shared_key(join: Callable[..., Joint]) -> None:
    joint = join(flows=1)
    for site in joint.sites:
        key = site.folder / "key"
        key.write_text("the same on both hosts\n")
        key.chmod(0o600)
        site.environment["HARP_KEY_FILE"] = str(key)
    with job(joint.sites, joint.host, all_reduce("4M", 120, 1)) as running:
        for number in range(ROUNDS):
            flow = running.grows(0)
            joint.blackhole(flow, "tx")
            running.await_count(0, "flows_replaced", number + 1)
            fresh = lambda: running.sending(0)[0].local != flow.local  # noqa: E731
            wait_until(fresh, START_S, "the old connection is still there", running.ranks)
        joint.impair()
        running.ends_well()
        assert [seen["flows_replaced"] for seen in running.seen] == [ROUNDS, 0]
        assert running.count(1, "keys_refused") == 0
