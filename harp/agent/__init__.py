# SPDX-License-Identifier: Apache-2.0
"""The node's agent: it opens what takes privileges and passes the descriptors to jobs.

request.py reads a request, policy.py decides who may ask for what, grants.py remembers what each
process has, server.py answers. harp-agent-open (agent_open.c) opens the sockets. files/ has what
runs the agent as a service.
"""
