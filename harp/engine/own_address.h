/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An address of HARP's own belongs to HARP only if no other host has it: it is probed
 * before it is used (RFC 5227). Not so the kernel's, which answers for that itself.
 */
#ifndef HARP_ENGINE_OWN_ADDRESS_H
#define HARP_ENGINE_OWN_ADDRESS_H

#include <stdbool.h>

struct harp_engine;
struct harp_port_info;

/* Whether others on the port's network could have the address as well. */
bool harp_own_address_doubtful(const struct harp_port_info *info);

/*
 * Probes the engine's address, if that is doubtful, and announces it. Blocks for
 * about 0.3 s; the workers run already. 0; -EADDRINUSE and a line in error
 * (HARP_ENGINE_ERROR_SIZE bytes): another host has the address; -ETIMEDOUT, with a
 * line: a worker does not run.
 */
int harp_own_address_take(struct harp_engine *engine, char *error);

#endif
