# SPDX-License-Identifier: Apache-2.0
"""Hosts as network namespaces, and ranks that run in them."""
