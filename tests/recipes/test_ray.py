# SPDX-License-Identifier: Apache-2.0
"""The blocks of the recipe for Ray, on two nodes of Ray."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import blocks
import pytest
from cluster import Cluster
from expected import PLUGIN, ranks

from tools.hosts.ranks import wait_until

PAGE = (blocks.RECIPES / "ray.md").read_text()
HEAD, JOIN, JOB, STOP = (one for one in blocks.of_recipes() if one.page == "ray.md")
PARTS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
OF_RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
START_S, LONGEST_S = 60.0, 240.0

# Number 1 of a host's processes. It ends none, and leaves no zombies.
FIRST = ("sh", "-c", "trap '' CHLD; exec sleep infinity")

# Each worker finds the plugin, does the page's training on CPUs, and says whether HARP carried it.
JOB_TEXT = """
{loop}
of_page = train_loop

def train_loop():
    import os, runpy
    from harp.observe import statfile
    runpy.run_path({train!r})
    of_page()
    mine = [one for one in statfile.scan() if one.pid == os.getpid()]
    messages = sum(one.totals["messages_out"] for one in mine)
    print("rank", os.environ["RANK"], "sent", "messages" if messages else "nothing")

{start}
"""


class Node:
    """A host with process numbers of its own: ray start leaves processes behind, and ray stop ends
    all that it sees."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        args = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *FIRST]
        self._process = cluster.start(name, args, output=subprocess.DEVNULL)
        self._first = ""
        wait_until(self._is_there, START_S, f"{name} has no first process")

    def _is_there(self) -> bool:
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self._first = children[0] if children else ""
        # unshare mounts /proc before it starts the program. Children of the shell before it end.
        try:
            return bool(children) and Path(f"/proc/{children[0]}/comm").read_text() == "sleep\n"
        except OSError:
            return False

    def run(self, block: blocks.Block) -> str:
        """The output. An error holds that of a block that failed."""
        enter = ["nsenter", f"--target={self._first}", "--mount", "--uts", "--net", "--pid"]
        done = subprocess.run(
            [*enter, f"--wd={self._cluster.work}", "bash", "-euc", block.text],
            env={**self._cluster.environment(), **OF_RAY, **self._variables()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST_S,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def _variables(self) -> dict[str, str]:
        """Those of HARP's folders, which the host's first process has."""
        lines = Path(f"/proc/{self._first}/environ").read_text().split("\0")
        return dict(line.split("=", 1) for line in lines if line.startswith("HARP_"))

    def end(self) -> None:
        """Ends all processes of the host."""
        self._process.kill()
        self._process.wait(30)


@contextmanager
def nodes(cluster: Cluster) -> Iterator[dict[str, Node]]:
    with ExitStack() as stack:
        made = {}
        for name in cluster.hosts:
            made[name] = Node(cluster, name)
            stack.callback(made[name].end)
        yield made


def replaced(text: str, old: str, new: str) -> str:
    assert old in text, text
    return text.replace(old, new)


def train(
    cluster: Cluster, head: blocks.Block, join: blocks.Block, start: str, plugin: str
) -> None:
    """Starts Ray on both hosts, runs a job of the page's training, and ends Ray. The workers must
    find this plugin."""
    program = cluster.work / "train.py"
    finds_plugin = str(program.resolve())
    program.unlink()
    program.write_text(JOB_TEXT.format(loop=PARTS[2], train=finds_plugin, start=start))
    with nodes(cluster) as of:
        of["gpu1"].run(head)
        of["gpu2"].run(join)
        said = of["gpu1"].run(JOB)
        # Ray chooses which host comes first. It prints a line twice, as the hosts share a disk.
        found = set(ranks(said))
        assert {(rank, count, path) for _, rank, count, path in found} == {
            (str(rank), "4", plugin) for rank in range(4)
        }, said
        assert sorted(host for host, _, _, _ in found) == ["gpu1", "gpu1", "gpu2", "gpu2"], said
        # The mean of the ranks, from each of them.
        averaged = set(re.findall(r"rank (\d) averaged (\S+)", said))
        assert averaged == {(str(rank), "1.5") for rank in range(4)}, said
        sent = set(re.findall(r"rank (\d) sent (\S+)", said))
        assert sent == {(str(rank), "messages") for rank in range(4)}, said
        for node in of.values():
            node.run(STOP)


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("ray", "pyarrow", "torch"))),
        reason="no Ray Train here: pip install torch 'ray[train]'",
    ),
]


def test_workers_of_ray_inherit_harprun(cluster: Cluster) -> None:
    train(cluster, HEAD, JOIN, replaced(PARTS[0], "use_gpu=True", "use_gpu=False"), PLUGIN)


def test_job_names_plugin_on_running_cluster(cluster: Cluster) -> None:
    """The nodes start without harprun."""

    def bare(block: blocks.Block) -> blocks.Block:
        return blocks.Block("ray.md", 0, replaced(block.text, "harprun ", ""), block.places)

    trainer = replaced(PARTS[0].splitlines()[-1], "use_gpu=True", "use_gpu=False")
    imports = "\n".join(line for line in PARTS[0].splitlines() if line.startswith("from "))
    start = f"{imports}\n{PARTS[1]}\n{trainer}"
    plugin = str(Path(PLUGIN).with_name("libnccl-net-harp.so"))
    train(cluster, bare(HEAD), bare(JOIN), start, plugin)
