# SPDX-License-Identifier: Apache-2.0
"""HARP's commands, a module each."""
