# SPDX-License-Identifier: Apache-2.0
"""Host set-up: what has to be on a machine before a job finds HARP, and its undoing."""
