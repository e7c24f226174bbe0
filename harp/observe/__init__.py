# SPDX-License-Identifier: Apache-2.0
"""Readers of statistics files and traces, and the recording of frames."""
