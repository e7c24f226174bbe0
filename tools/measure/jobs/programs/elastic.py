# SPDX-License-Identifier: Apache-2.0
"""torchrun's elastic agent on one host of a lab. Usage: elastic.py ADDRESSES PROGRAM WORD...

ADDRESSES: those of all hosts, with commas between them. The hosts of a lab share one host name, so
the agent is told its address.
"""

from __future__ import annotations

import os
import sys

from torch.distributed.run import main

addresses = sys.argv[1].split(",")
place = int(os.environ["RANK"])
main([
    "--nnodes", str(len(addresses)), "--nproc-per-node", "1", "--max-restarts", "3",
    "--monitor-interval", "0.2", "--rdzv-backend", "c10d", "--rdzv-id", "lab",
    "--rdzv-endpoint", f"{addresses[0]}:{os.environ['MASTER_PORT']}",
    "--rdzv-conf", f"is_host={int(place == 0)}",
    "--local-addr", addresses[place], *sys.argv[2:],
])  # fmt: skip
