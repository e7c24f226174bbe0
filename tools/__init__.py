# SPDX-License-Identifier: Apache-2.0
"""The project's own tools; none of them is in the wheel."""
