# SPDX-License-Identifier: Apache-2.0
"""Where the blocks of documents run: in a checkout, or on the hosts of the recipes.

What a block writes to the machine's folders goes to a layer over them, which only the block's
processes see. The layer ends with the block, and so do the block's processes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from blocks import ROOT, Block
from cluster import LONGEST_S, Cluster, finish

FOLDERS = ("/etc", "/usr/lib", "/usr/local", "/var/lib", "/run", str(ROOT))

# $1: a folder for the layers; FOLDER... -- COMMAND... A layer hides what is mounted below its
# folder: the table of names, and the network namespaces.
_LAYERS = """
names=$(cat /etc/hosts); layers=$1; shift
mkdir -p "$layers"; mount -t tmpfs none "$layers"
mkdir -p /run/netns "$layers/hosts"; mount --rbind /run/netns "$layers/hosts"
while [ "$1" != -- ]; do
  mkdir -p "$layers$1/new" "$layers$1/work"
  mount -t overlay overlay -o "lowerdir=$1,upperdir=$layers$1/new,workdir=$layers$1/work" "$1"
  shift
done
mount --rbind "$layers/hosts" /run/netns; echo "$names" > /etc/hosts
cd "$PWD"; shift; exec "$@"
"""
# Labs of this machine and labs of a block do not see each other.
_OWN_LABS = """
mkdir -p /run/harp-lab; mount -t tmpfs none /run/harp-lab; mount -t tmpfs none /run/netns
exec "$@"
"""
# harp setup asks, and has to take back what it has done to the lab.
_NEW_HOST = """
rm "$HARP_CONF_DIR"/*; trap 'harp setup undo' EXIT
exec < <(yes)
"""
# pip takes its build tools from this environment: a host of the lab reaches no package index. pip
# reads 0 as "no isolation".
_CLONE = f"""
{_NEW_HOST}
cp *.py {ROOT}; cd {ROOT}
python3 -m venv "$TMPDIR/venv"
echo {sysconfig.get_path("purelib")} > "$(echo "$TMPDIR"/venv/lib/python3*/site-packages)/tools.pth"
export PATH="$TMPDIR/venv/bin:$PATH" PIP_NO_BUILD_ISOLATION=0 PIP_NO_INDEX=1
unset PYTHONPATH
"""
_JOB = """
job="harp perf sendrecv -b 1M -e 1M -n 1000000 --rendezvous gpu1:5000"
ssh gpu2 RANK=1 WORLD_SIZE=2 $job > /dev/null 2>&1 &
RANK=0 WORLD_SIZE=2 $job > /dev/null 2>&1 &
until [[ $(harp stat --json) == *'"link"'* ]]; do sleep 0.1; done
"""
_AGENT = """
useradd --system --no-create-home harp
mkdir /var/lib/node_exporter
harp agent &
until [ -S /run/harp/agent.sock ]; do sleep 0.1; done
"""
# Rank 1 is killed once its link is open. The port of rank 0 is the one of the document.
_TRACE = """
run=/usr/local/tfabric/tools/run; mkdir -p $run
echo tcp_ports = 33034-33034 >> "$HARP_CONF_DIR/ztcp0.conf"
job="harp perf sendrecv -b 1M -e 1M -n 1000000 --nranks 2 --rendezvous gpu1:5000"
ssh gpu2 exec $job --rank 1 & peer=$!
$job --rank 0 & rank=$!
until [[ $(harp stat --json) == *'"link"'* ]]; do sleep 0.1; done
kill -KILL $peer; wait $rank || true
mv "$HARP_RUN_DIR"/*.trace $run/0123456789abcdef.trace
"""
_BEFORE = {
    "new host": _NEW_HOST,
    "clone": _CLONE,
    "job": _JOB,
    "agent": _AGENT,
    "trace": _TRACE,
    "monitoring": "mkdir -p /etc/prometheus /var/lib/grafana/dashboards\n",
}


# Of a block's text, or of its place: programs that not every machine has.
_PROGRAMS = ("mpirun", "nft", "tcpdump", "useradd")


def missing_programs(block: Block) -> list[str]:
    """Programs that the block needs and this machine lacks."""
    text = _BEFORE.get(block.places[0], "") + block.text
    path = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return [one for one in _PROGRAMS if f"{one} " in text and not shutil.which(one, path=path)]


def _layered(folder: Path, args: Sequence[str]) -> list[str]:
    """The arguments that run a program over layers. `folder` gets a folder for them."""
    return [
        *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
        *("bash", "-euc", _LAYERS, "layers", str(folder / "layers"), *FOLDERS, "--", *args),
    ]


def has_layers(folder: Path) -> bool:
    """Whether this machine lets a test mount layers."""
    done = subprocess.run(_layered(folder, ["true"]), capture_output=True, check=False)
    return done.returncode == 0


def _shell(text: str) -> list[str]:
    return ["bash", "-euo", "pipefail", "-c", text]


def run_in_checkout(block: Block, folder: Path, timeout: float) -> str:
    """Runs a block in this checkout, or in a shell of a lab there. `folder` gets the layers.
    Returns the output; raises AssertionError with it."""
    args = _shell(block.text)
    if block.places == ("lab",):
        args = ["./tools/lab", "up", "--", *args]
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
    }
    process = subprocess.Popen(
        _layered(folder, ["bash", "-euc", _OWN_LABS, "labs", *args]),
        env=environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    return finish([process], timeout, fails="and fails" in block.manners)


def run_on_hosts(block: Block, cluster: Cluster, timeout: float = LONGEST_S) -> str:
    """Runs a block on hosts. Returns the output; raises AssertionError with it."""
    if block.places == ("a line on each",):
        texts = dict(zip(cluster.hosts, block.text.strip().splitlines()))
    else:
        hosts = [place for place in block.places if place in cluster.hosts] or ["gpu1"]
        texts = dict.fromkeys(hosts, _BEFORE.get(block.places[0], "") + block.text)
    if "until Ctrl-C" in block.manners:
        ((name, text),) = texts.items()
        return _interrupt(cluster, name, text, timeout)
    return finish([_start(cluster, *one) for one in texts.items()], timeout)


def _start(cluster: Cluster, name: str, text: str) -> "subprocess.Popen[str]":
    return cluster.start(name, _layered(cluster.folder / name, _shell(text)))


def _interrupt(cluster: Cluster, name: str, text: str, timeout: float) -> str:
    """Presses Ctrl-C as soon as the last line has written to its output or to a file. Its program
    must then end with status 0. What follows it in a pipe need not: tcpdump does not."""
    first, _, last = text.rstrip().rpartition("\n")
    started, told = cluster.folder / "started", cluster.work / "told"
    told.touch()
    mark = f"touch '{started}'; exec >> '{told}' 2>&1"
    end = f"set +e\n{last}\nexit ${{PIPESTATUS[0]}}"
    process = _start(cluster, name, f"{first}\n{mark}\n{end}")
    limit = time.monotonic() + timeout
    while not _is_written(cluster.work, started):
        if process.poll() is not None or time.monotonic() > limit:
            break
        time.sleep(0.02)
    went_on = process.poll() is None and _is_written(cluster.work, started)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        said = finish([process], timeout)
    except AssertionError as failure:
        raise AssertionError(f"{failure}\n{told.read_text(errors='replace')}") from None
    said += told.read_text(errors="replace")
    assert went_on, f"the block ended before Ctrl-C, or wrote nothing\n{said}"
    return said


def _is_written(folder: Path, started: Path) -> bool:
    """Whether a file of the folder has been written since."""
    if not started.exists():
        return False
    since = started.stat().st_mtime_ns
    files = [one.stat() for one in folder.iterdir()]
    return any(one.st_size and one.st_mtime_ns > since for one in files)
