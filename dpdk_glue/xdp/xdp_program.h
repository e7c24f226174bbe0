/* SPDX-License-Identifier: Apache-2.0 */
/* What the XDP program (xdp_program.bpf.c), the file that the build makes of it (xdp_program.py),
 * and the loader (xdp_steering.c) share. */
#ifndef HARP_DPDK_GLUE_XDP_PROGRAM_H
#define HARP_DPDK_GLUE_XDP_PROGRAM_H

#include <linux/types.h>

enum { XDP_PORTS_PER_WORD = 64, XDP_PORT_WORDS = 65536 / XDP_PORTS_PER_WORD };

/* The only entry of the map xdp_settings: which frames are HARP's, besides the local port. */
struct xdp_settings {
  __u16 address[2]; /* destination address, network order */
  __u16 mac[3];     /* destination MAC address */
  __u16 unused;
};

enum xdp_map { MAP_xdp_ports, MAP_xdp_settings, MAP_xdp_sockets };

enum { XDP_PROGRAM_WORDS = 256, XDP_PROGRAM_MAPS = 8 }; /* most of a program */

/* The compiled program. */
struct xdp_program {
  __u32 words, maps;
  __u64 code[XDP_PROGRAM_WORDS]; /* instructions (RFC 9669) */
  struct {
    __u16 instruction; /* loads the address of the map */
    __u16 map;         /* enum xdp_map */
  } map[XDP_PROGRAM_MAPS];
};

extern const struct xdp_program harp_xdp_program;

#endif
