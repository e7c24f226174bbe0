# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the packet-level tests, also where the package is not installed."""

pytest_plugins = ["harp.testing.plugin"]
