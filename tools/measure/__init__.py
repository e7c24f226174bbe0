# SPDX-License-Identifier: Apache-2.0
"""Measurement: rows, interleaved pairs, medians and tables, on the hosts of a lab."""
