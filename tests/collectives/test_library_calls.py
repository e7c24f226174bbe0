# SPDX-License-Identifier: Apache-2.0
"""The C library of collectives without PyTorch, see programs/library.py."""

from __future__ import annotations

from typing import Any

import pytest
from torch_tests import run_program

from harp import paths
from tools.hosts.ranks import remove_wire, wire_path, wire_site


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    wire = wire_path()
    folder = tmp_path_factory.mktemp("site")
    site, other_end = (wire_site(folder / str(number), wire, number) for number in (1, 2))
    libraries = (paths.collectives_library(), paths.nccl_plugin_path())
    try:
        return run_program(site, "library.py", *libraries, other_end.folder)
    finally:
        remove_wire(wire)


def test_output_smaller_than_own_part_is_refused(told: dict[str, Any]) -> None:
    said = told["refusals"]
    assert len(said) == 5
    for sentence in said.values():
        assert "rank 0 gives itself 4088 bytes, and its output for them has 4080" in sentence, said


def test_short_payload_ends_while_a_long_one_is_under_way(told: dict[str, Any]) -> None:
    assert told["mixed"] == []


def test_failure_does_not_wait_for_acknowledgements(told: dict[str, Any]) -> None:
    late = told["stopped peer"]
    assert late["state"] == -1
    assert "waits for rank 1 on " in late["text"], late
    assert 0.3 <= late["seconds"] < 2.2, late  # the close of the link takes two more seconds


def test_limit_of_centuries_does_not_wrap(told: dict[str, Any]) -> None:
    assert told["late limit"] == 2  # both ends are done


def test_late_operation_names_all_ranks_that_it_waits_for(told: dict[str, Any]) -> None:
    assert "it waits for rank 1 on  to send, rank 2 on  to send. Look" in told["absent"]


def test_limit_holds_behind_an_earlier_operation(told: dict[str, Any]) -> None:
    late = told["late behind another"]
    assert late["states"] == [-1, -1]
    assert "barrier of rank 0 (0 bytes) has not ended within 300 ms" in late["text"], late
    assert "it waits for rank 1 on  to send. Look" in late["text"], late


def test_failure_reaches_a_rank_that_nothing_was_under_way_with(told: dict[str, Any]) -> None:
    assert told["failure elsewhere"] == -1


def test_forked_child_is_refused_and_does_not_wait(told: dict[str, Any]) -> None:
    """It has none of its parent's threads. The parent goes on."""
    forked = told["forked"]
    assert forked["status"] == 0 and forked["parent"] == [1, 1], forked
    child = forked["child"]
    assert [child[name][0] for name in ("create", "post")] == [None, None]
    for name in ("open", "start", "share", "wait", "state"):
        assert child[name][0] == -1, name
    for name in ("open", "create", "start", "share", "post", "wait"):
        assert "forked from one that uses HARP" in child[name][1], name


def test_negative_tag_is_refused(told: dict[str, Any]) -> None:
    assert "a tag is 0 or more" in told["negative tag"]


def test_message_beyond_the_memory_for_early_messages_fails_the_group(told: dict[str, Any]) -> None:
    """It fails at the header, before it takes memory. Early messages before it were received."""
    assert "bytes with tag 2, for which no receive is posted; early" in told["flood"], told
    assert "already take 0 of at most " in told["flood"]
