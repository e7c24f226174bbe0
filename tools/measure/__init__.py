# SPDX-License-Identifier: Apache-2.0
"""Measurements on the hosts of a lab: interleaved pairs, medians and tables."""
