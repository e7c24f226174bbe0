/* SPDX-License-Identifier: Apache-2.0 */
/* What a connection must be like between any two calls of its stack, whatever its peer sends:
 * its books agree, its memory is bounded, and whatever it waits for has a timer. */
#ifndef HARP_TESTS_SIM_BOOKS_H
#define HARP_TESTS_SIM_BOOKS_H

#include <stdbool.h>

#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"

/* NULL, or the condition that does not hold. whole: also lists of many records to their end. */
const char *tcp_books(const struct harp_tcp *tcp, bool whole);

/* When all connections are over: NULL, or what is still in use of *pool. */
const char *stack_in_use(const struct harp_stack *stack, const struct harp_pool **pool);

#endif
