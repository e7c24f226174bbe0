/* SPDX-License-Identifier: Apache-2.0 */
/* Invariants of a connection between any two calls of its stack, whatever its peer sends: its
 * counts are consistent, its memory is bounded, and a timer runs for everything that it waits
 * for. */
#ifndef HARP_TESTS_SIM_BOOKS_H
#define HARP_TESTS_SIM_BOOKS_H

#include <stdbool.h>

#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"

/* Returns NULL, or the condition that is false. whole: walks lists of many records to their end. */
const char *tcp_books(const struct harp_tcp *tcp, bool whole);

/* For a stack without connections. Returns NULL, or the name of *pool, which still has objects
 * in use. */
const char *stack_in_use(const struct harp_stack *stack, const struct harp_pool **pool);

#endif
