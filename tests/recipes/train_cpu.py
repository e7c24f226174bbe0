# SPDX-License-Identifier: Apache-2.0
"""Stands in for a training program on CPUs: its ranks add up a tensor by harp.torch."""

import os
import socket

import torch
import torch.distributed as dist

import harp.torch  # noqa: F401 - registers the backend

dist.init_process_group("harp")
ones = torch.ones(1000)
dist.all_reduce(ones)
who = f"rank {dist.get_rank()} of {dist.get_world_size()}"
dist.destroy_process_group()
# In one write, because the ranks of a host share the output.
os.write(1, f"{socket.gethostname()}: {who} summed {int(ones.sum())}\n".encode())
