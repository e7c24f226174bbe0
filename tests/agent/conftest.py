# SPDX-License-Identifier: Apache-2.0
"""Fixtures: agents on the hosts of a lab, and pods."""

from agents import folder, start_agent, start_pods

from tools.hosts.lab_fixtures import lab, make_lab

__all__ = ["folder", "lab", "make_lab", "start_agent", "start_pods"]
