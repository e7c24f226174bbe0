# SPDX-License-Identifier: Apache-2.0
"""Hosts made of network namespaces, and ranks that run in them."""
