"""HARP: a user-space TCP/IP stack as an NCCL net plugin."""
