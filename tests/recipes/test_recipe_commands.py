# SPDX-License-Identifier: Apache-2.0
"""The command lines of the recipes run as they are printed."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys

import blocks
import pytest
from blocks import Block
from cluster import Cluster
from expected import HOSTS, check, ranks
from slurm_cluster import missing, slurm

from harp import paths

RUN = [block for block in blocks.of_recipes() if block.places]
MPIRUNS = {"Open MPI 4": "mpirun.openmpi", "Open MPI 5": "mpirun"}
USER = 1000  # of the recipes


def of_page(*pages: str, place: str = "") -> list[object]:
    """The blocks of pages, as parameters of a test."""
    return [
        pytest.param(block, id=block.title)
        for block in RUN
        if block.page in pages and (place in block.places or not place)
    ]


def shell(block: Block) -> list[str]:
    """The arguments that run a block."""
    for program, package in (("torchrun", "torch"), ("deepspeed", "deepspeed")):
        if program in block.text and not importlib.util.find_spec(package):
            pytest.skip(f"no {package} here: pip install {package}")
    return ["bash", "-euc", block.text]


def run(block: Block, cluster: Cluster) -> None:
    check(block, cluster.run(block.places, shell(block)))


@pytest.mark.parametrize("block", of_page("openmpi.md"))
@pytest.mark.parametrize(
    "release", [pytest.param("Open MPI 4", marks=pytest.mark.slow), "Open MPI 5"]
)
def test_open_mpi(block: Block, release: str, cluster: Cluster) -> None:
    program = shutil.which(MPIRUNS[release], path=cluster.path())
    if not program:
        pytest.skip(f"no {release} here: run tools/prepare --tests")
    (cluster.bin / "mpirun").symlink_to(program)
    run(block, cluster)


@pytest.mark.parametrize("block", of_page("mpich.md", place="gpu1"))
def test_mpich(block: Block, cluster: Cluster) -> None:
    run(block, cluster)


@pytest.mark.slow
@pytest.mark.parametrize("block", of_page("torchrun.md"))
def test_torchrun(block: Block, cluster: Cluster) -> None:
    run(block, cluster)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("pdsh"), reason="no pdsh here: apt-get install pdsh")
@pytest.mark.parametrize("block", of_page("deepspeed.md"))
def test_deepspeed(block: Block, cluster: Cluster) -> None:
    (cluster.work / "hosts").write_text("gpu1 slots=2\ngpu2 slots=2\n")
    run(block, cluster)


needs_slurm = pytest.mark.skipif(
    bool(missing()), reason=f"no {', '.join(missing())} here: run tools/prepare --tests"
)


@needs_slurm
@pytest.mark.slow
@pytest.mark.parametrize("block", of_page("slurm.md", "mpich.md", place="Slurm"))
def test_slurm(block: Block, cluster: Cluster) -> None:
    with slurm(cluster) as nodes:
        check(block, nodes.run(shell(block)))


@needs_slurm
@pytest.mark.slow
def test_ranks_of_slurm_meet_on_the_first_node_of_their_step(cluster: Cluster) -> None:
    """srun runs on the other node, as on a login node. A step may have some nodes of its job."""
    check = "harprun harp check --quick"
    with slurm(cluster) as nodes:
        args = ["srun", "-N", "2", "--ntasks-per-node", "2", *check.split()]
        said = nodes.run(args, host="gpu2")
        assert "harp check: 4 ranks" in said and ": good" in said, said
        step = f"srun -N 1 -n 2 -w gpu2 {check}"
        said = nodes.run(["salloc", "-N", "2", "--ntasks-per-node", "2", "sh", "-c", step])
        assert "harp check: 2 ranks" in said and ": good" in said, said


@needs_slurm
@pytest.mark.slow
def test_slurms_prolog_and_epilog(cluster: Cluster) -> None:
    """Set-up comes before the job's first step, and its traces are gone after the job."""
    (block,) = (one for one in RUN if "harp-prolog.sh" in one.text)
    cluster.run(["gpu1"], shell(block))
    text = (blocks.RECIPES / block.page).read_text()
    (lines,) = re.findall(r"^```\n(Prolog=.*?)^```$", text, re.MULTILINE | re.DOTALL)
    more = lines.replace("/etc/slurm", str(cluster.work))
    for name in HOSTS:
        shutil.rmtree(cluster.folder / name / "config")
    with slurm(cluster, more) as nodes:
        said = nodes.run(["srun", "-N", "2", "harp", "env"])
        assert said.count("device      packet:eth0") == 2, said
        done = 'until [ "$(sinfo -h -o %t-%D)" = idle-2 ]; do sleep 0.1; done'
        nodes.run(["sh", "-c", done])
    for name in HOSTS:
        assert not (cluster.folder / name / "config").exists()


@pytest.fixture
def user(cluster: Cluster) -> Cluster:
    """The cluster, whose work folder belongs to the user of the recipes."""
    os.chown(cluster.work, USER, USER)
    os.chown(cluster.folder / "gpu1/run", USER, USER)
    may_read = ["setpriv", f"--reuid={USER}", "--clear-groups", sys.executable, "-m", "harp", "-h"]
    if subprocess.run(may_read, cwd="/", capture_output=True, check=False).returncode:
        pytest.skip(f"uid {USER} may not read this checkout")
    return cluster


def block_with(page: str, word: str) -> Block:
    (found,) = (block for block in RUN if block.page == page and word in block.text)
    return found


def test_ambient_capability(user: Cluster) -> None:
    block = block_with("non-root.md", "--ambient-caps")
    said = user.run(block.places, shell(block))
    assert "ok    privileges: packet sockets may be opened" in said, said
    without = block.text.replace("--inh-caps +net_raw --ambient-caps +net_raw", "")
    with pytest.raises(AssertionError, match="CAP_NET_RAW"):
        user.run(block.places, ["sh", "-c", without])


def test_file_capability(user: Cluster) -> None:
    block = block_with("non-root.md", "setcap")
    said = user.run(block.places, shell(block))
    assert said.split()[-1] == str(paths.nccl_plugin_path())


def test_file_capability_loses_library_path(user: Cluster) -> None:
    """With harprun in place of the plugin's path the loader does not find it. It does for the same
    program without the capability."""
    text = block_with("non-root.md", "setcap").text
    changed = re.sub(r"^export .*\n", "", text, flags=re.MULTILINE)
    changed = changed.replace("./python3-harp", "harprun ./python3-harp")
    with pytest.raises(AssertionError, match="libnccl-net.so: cannot open shared object file"):
        user.run(["gpu1"], ["sh", "-ec", changed])
    user.run(["gpu1"], ["sh", "-ec", re.sub(r"^setcap .*\n", "", changed, flags=re.MULTILINE)])


def test_hydra_passes_library_path(cluster: Cluster) -> None:
    line = "harprun mpiexec.hydra -np 4 -hosts gpu1:2,gpu2:2 python3 train.py"
    said = cluster.run(["gpu1"], ["sh", "-ec", line])
    assert len(ranks(said)) == 4


def test_open_mpi_does_not_pass_library_path(cluster: Cluster) -> None:
    line = "harprun mpirun -np 2 -H gpu1:1,gpu2:1 --bind-to none python3 train.py"
    with pytest.raises(AssertionError, match="libnccl-net.so: cannot open shared object file"):
        cluster.run(["gpu1"], ["sh", "-ec", line])


def test_each_block_says_where_it_runs() -> None:
    block = "<!-- {} -->\n```sh\nmpirun harprun python3 train.py\n```\n"
    with pytest.raises(ValueError, match="block 1 does not say where it runs"):
        blocks.parse("x.md", block.split("\n", 1)[1])
    with pytest.raises(ValueError, match="block 2 does not say where it runs: 'runs on gpu3'"):
        blocks.parse("x.md", block.format("runs on gpu1") + block.format("runs on gpu3"))
    (one,) = blocks.parse("x.md", block.format("not run: no cluster"))
    assert not one.places


def test_each_block_that_runs_has_a_test() -> None:
    pages = {
        "openmpi.md",
        "mpich.md",
        "torchrun.md",
        "slurm.md",
        "deepspeed.md",
        "ray.md",
        "non-root.md",
    }
    assert {block.page for block in RUN} == pages
