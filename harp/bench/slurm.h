/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Slurm's variables tell of the nodes of a job. harp/check/launcher.py follows the same rules.
 */
#ifndef HARP_BENCH_SLURM_H
#define HARP_BENCH_SLURM_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Writes the name of the node on which rank 0 of that many ranks belongs. rank: of this process.
 * The node is the first one of the step if its tasks are the ranks, else the first node of the job,
 * because mpirun may start its helpers in a step that lacks a node. Returns false without a list of
 * nodes, or if the name does not fit. srun's own place (SLURM_LAUNCH_NODE_IPADDR) may be a login
 * node.
 */
bool slurm_first_node(int rank, int ranks, char *name, size_t size);

/* The name of this node; NULL outside a job. Valid until the environment changes. */
const char *slurm_this_node(void);

#endif
