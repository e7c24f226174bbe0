# SPDX-License-Identifier: Apache-2.0
"""`harp check`: the ranks of a job test their hosts and network together, before the job."""
