# SPDX-License-Identifier: Apache-2.0
"""Prepares a host for HARP, and undoes that."""
