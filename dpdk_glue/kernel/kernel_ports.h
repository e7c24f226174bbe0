/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The local TCP ports that the kernel of this network namespace assigns automatically: those in
 * ip_local_port_range and not in ip_local_reserved_ports (Linux, networking/ip-sysctl). An
 * administrator or a service may rely on the other ports, even if they are free now.
 */
#ifndef HARP_DPDK_GLUE_KERNEL_PORTS_H
#define HARP_DPDK_GLUE_KERNEL_PORTS_H

#include <stdbool.h>
#include <stdint.h>

struct harp_kernel_ports {
  uint16_t first, last;
  uint64_t reserved[65536 / 64];
};

/* Reads the current state from /proc. Without /proc no port counts as reserved. */
void harp_kernel_ports_read(struct harp_kernel_ports *ports);

/* Returns true if the kernel could assign the port automatically. port: host order. */
bool harp_kernel_ports_offered(const struct harp_kernel_ports *ports, uint16_t port);

#endif
