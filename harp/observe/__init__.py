# SPDX-License-Identifier: Apache-2.0
"""Reads statistics files and traces, and records frames."""
