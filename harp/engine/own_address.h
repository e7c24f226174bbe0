/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HARP probes an address of its own by ARP before it uses the address, because another host may
 * have it (RFC 5227). The kernel's address needs no probe: the kernel handles its conflicts.
 */
#ifndef HARP_ENGINE_OWN_ADDRESS_H
#define HARP_ENGINE_OWN_ADDRESS_H

#include <stdbool.h>

struct harp_engine;
struct harp_port_info;

/* Whether another host on the port's network could have the address, too. */
bool harp_own_address_doubtful(const struct harp_port_info *info);

/*
 * Probes the engine's address if another host could have it, and announces it. The workers must run
 * already. Blocks for about 0.3 s. 0, or a negative errno and one line in error
 * (HARP_ENGINE_ERROR_SIZE bytes): -EADDRINUSE: another host has the address; -ETIMEDOUT: a worker
 * does not run.
 */
int harp_own_address_take(struct harp_engine *engine, char *error);

#endif
