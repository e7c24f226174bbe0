# SPDX-License-Identifier: Apache-2.0
"""Initialises the backend: twice while HARP cannot run on rank 1, and then well.

Usage: initialise.py EMPTY_FOLDER. Prints the reasons.
"""

from __future__ import annotations

import os
import sys

import torch.distributed as dist

import harp.torch  # noqa: F401


def initialise(store: dist.Store, name: str, **environment: str) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    before = dict(os.environ)
    if rank == 1:
        os.environ.update(environment)
    try:
        dist.init_process_group(
            "harp", store=dist.PrefixStore(name, store), rank=rank, world_size=size
        )
        print(f"{name}: well", flush=True)
    except RuntimeError as error:
        print(f"{name}: {error}", flush=True)
    os.environ.clear()
    os.environ.update(before)


def main() -> None:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=os.environ["RANK"] == "0")
    initialise(store, "disabled", HARP_DISABLE="1")
    initialise(store, "no file", HARP_CONF_DIR=sys.argv[1])
    initialise(store, "right")
    dist.barrier()
    dist.destroy_process_group()


main()
