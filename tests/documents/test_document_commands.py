# SPDX-License-Identifier: Apache-2.0
"""The blocks of the documents run as they are printed. CONTRIBUTING.md explains their marks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import blocks
import pytest
from blocks import Block
from cluster import Cluster
from places import has_layers, missing_programs, run_in_checkout, run_on_hosts

RUN = [block for block in blocks.of_documents() if block.places]
CHECKOUT = ("checkout", "lab")
HOSTS = ("gpu1", "a line on each", "new host", "clone", "job", "agent", "trace", "monitoring")
SLOW_S = 100.0
ON_REQUEST_S = 900.0

on_request = pytest.mark.skipif(
    not os.environ.get("HARP_TEST_FULL"), reason="takes a minute or more: set HARP_TEST_FULL=1"
)


def in_places(places: Sequence[str]) -> list[object]:
    """The blocks of some places, as parameters of a test. Those of one host are quick."""
    found = []
    for block in RUN:
        if block.places[0] in places:
            marks = [pytest.mark.timeout(limit(block) + 30)]
            if block.places != ("gpu1",) or "mpirun" in block.text:
                marks.append(pytest.mark.slow)
            if "on request" in block.manners:
                marks += [pytest.mark.slow, on_request]
            found.append(pytest.param(block, id=block.title, marks=marks))
    return found


def limit(block: Block) -> float:
    """Seconds."""
    return ON_REQUEST_S if "on request" in block.manners else SLOW_S


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> None:
    if os.geteuid() != 0:
        pytest.skip("layers over folders need root")
    if not has_layers(tmp_path_factory.mktemp("layers")):
        pytest.skip("this machine mounts no overlay over a folder")


def check_programs(block: Block) -> None:
    if missing := missing_programs(block):
        pytest.skip(f"no {', '.join(missing)} here: run tools/prepare --tests")


@pytest.mark.usefixtures("layers")
@pytest.mark.parametrize("block", in_places(CHECKOUT))
def test_block_runs_in_a_checkout(block: Block, tmp_path: Path) -> None:
    check_programs(block)
    run_in_checkout(block, tmp_path, limit(block))


@pytest.mark.usefixtures("layers")
@pytest.mark.parametrize("block", in_places(HOSTS))
def test_block_runs_on_hosts(block: Block, cluster: Cluster) -> None:
    check_programs(block)
    run_on_hosts(block, cluster, limit(block))


def test_each_block_that_runs_has_a_test() -> None:
    assert {block.places[0] for block in RUN} == {*CHECKOUT, *HOSTS}


# -- the runner itself


@pytest.mark.usefixtures("layers")
def test_layers_hide_what_a_block_writes(cluster: Cluster, tmp_path: Path) -> None:
    """Neither a block in a checkout nor one on a host writes to the machine's folders."""
    name = f"harp-{tmp_path.name}-{os.getpid()}"
    folders = ("/etc", "/usr/lib", "/usr/local", "/var/lib", "/run", str(blocks.ROOT))
    text = "".join(f"echo x > {folder}/{name}\n" for folder in folders)
    here = Block("x.md", 1, f"{text}echo x > {name}-here", ("checkout",))
    run_in_checkout(here, tmp_path, SLOW_S)
    run_on_hosts(Block("x.md", 1, text, ("gpu1",)), cluster)
    left = [path for folder in folders for path in Path(folder).glob(f"{name}*")]
    assert left == []


@pytest.mark.usefixtures("layers")
def test_failing_command_fails_its_block(cluster: Cluster) -> None:
    """Also one that is not the last, and one that feeds a pipe."""
    good = Block("x.md", 1, "true\n", ("gpu1",))
    run_on_hosts(good, cluster)
    for text in ("false\ntrue\n", "false | cat\n"):
        with pytest.raises(AssertionError):
            run_on_hosts(replace(good, text=text), cluster)
    lasting = frozenset({"until Ctrl-C"})
    for text in ("true\n", "echo x; exit 1\n"):
        with pytest.raises(AssertionError):
            run_on_hosts(replace(good, text=text, manners=lasting), cluster)


def test_each_block_says_where_it_runs() -> None:
    block = "<!-- {} -->\n```sh\nharp top\n```\n"
    with pytest.raises(ValueError, match="block 1 does not say where it runs: ''"):
        blocks.parse("x.md", block.split("\n", 1)[1])
    for comment in ("runs on a new host, until noon", "not run:", "not run", "runs"):
        with pytest.raises(ValueError, match=f"where it runs: '{comment}'"):
            blocks.parse("x.md", block.format(comment))
    (one,) = blocks.parse("x.md", block.format("runs on a new host, until Ctrl-C, on request"))
    assert one.places == ("new host",)
    assert one.manners == {"until Ctrl-C", "on request"}
