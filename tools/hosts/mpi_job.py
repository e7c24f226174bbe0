# SPDX-License-Identifier: Apache-2.0
"""Jobs of Open MPI's mpirun on the hosts of a lab, with HARP on each host.

mpirun reaches hosts by a remote shell, here by a script (remote_shell.py). The launch line has the
options of Open MPI 4, which Debian installs as mpirun.openmpi. Another mpirun may come first in
PATH.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.hosts.lab import INTERFACE, Lab, LabError
from tools.hosts.ports import random_port
from tools.hosts.ranks import packet_site
from tools.hosts.remote_shell import write_remote_shell
from tools.hosts.torch_job import ROOT

MPIRUN = "mpirun.openmpi"


def mpirun(
    lab: Lab, folder: Path, ranks: int, program: Sequence[object], timeout: float,
    **variables: object,
) -> str:  # fmt: skip
    """Runs a Python program with one rank on each of the first hosts, and returns its output.

    folder: for the configuration of the hosts. variables: of all ranks, passed on by -x. Raises
    LabError if mpirun is missing, fails, or takes longer than `timeout` seconds.
    """
    if not shutil.which(MPIRUN):
        raise LabError(f"no {MPIRUN} (Open MPI 4) here: apt-get install openmpi-bin")
    used = lab.hosts[:ranks]
    sites = {host.address: packet_site(folder / str(host.index), host) for host in used}
    master = {"MASTER_ADDR": used[0].address, "MASTER_PORT": random_port()}
    build = os.environ.get("HARP_BUILD_DIR") or ROOT / "build"
    everywhere = {"PYTHONPATH": ROOT, "HARP_BUILD_DIR": build, "OMP_NUM_THREADS": 1}
    passed = [f"{name}={value}" for name, value in {**variables, **master, **everywhere}.items()]
    own = sites[used[0].address]
    # Hosts share this machine's cores, so that mpirun must not bind each host's rank to the first.
    args = [MPIRUN, "--allow-run-as-root", "--bind-to", "none", "-np", ranks,
             "-H", ",".join(f"{host.address}:1" for host in used),
             "-mca", "plm_rsh_agent", write_remote_shell(folder / "agent", sites),
             "-mca", "oob_tcp_if_include", INTERFACE, *(one for pair in passed
             for one in ("-x", pair)), sys.executable, *program]  # fmt: skip
    environment = {"HARP_CONF_DIR": str(own.folder), "HARP_RUN_DIR": str(own.run_folder)}
    return used[0].run(args, environment, timeout).stdout
