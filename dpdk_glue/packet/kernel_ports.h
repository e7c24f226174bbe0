/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which local TCP ports this network namespace's kernel would choose by itself: those of
 * ip_local_port_range that ip_local_reserved_ports does not name (Linux,
 * networking/ip-sysctl). Others belong to somebody, though they may be free right now.
 */
#ifndef HARP_DPDK_GLUE_KERNEL_PORTS_H
#define HARP_DPDK_GLUE_KERNEL_PORTS_H

#include <stdbool.h>
#include <stdint.h>

struct harp_kernel_ports {
  uint16_t first, last;
  uint64_t reserved[65536 / 64];
};

/* As they are now; without /proc, none is anybody's. Reads files. */
void harp_kernel_ports_read(struct harp_kernel_ports *ports);

/* port: host order. */
bool harp_kernel_ports_offered(const struct harp_kernel_ports *ports, uint16_t port);

#endif
