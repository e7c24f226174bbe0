/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pass of top-k over a buffer of gradients, see harp_light_candidates of collectives.h. folds.h
 * has it for several instruction sets, which give the same bits. A pure function: any thread.
 */
#ifndef HARP_COLLECTIVES_CANDIDATES_H
#define HARP_COLLECTIVES_CANDIDATES_H

#include <stddef.h>
#include <stdint.h>

typedef size_t candidates_function(float *restrict rest, float *restrict gradient, size_t count,
                                   float bound, int32_t *restrict indices, float *restrict values,
                                   size_t room);

#ifdef HARP_CANDIDATES
candidates_function HARP_CANDIDATES; /* the one of an instruction set */
#endif

#endif
