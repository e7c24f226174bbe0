/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The XDP program of an interface and its maps. The program gives HARP's frames to HARP's sockets
 * and passes all others to the kernel (xdp_program.bpf.c).
 *
 * The link that attaches the program is a descriptor: the program vanishes with its process. Any
 * thread may hold or give back a port; the other calls are serialized by the caller.
 */
#ifndef HARP_DPDK_GLUE_XDP_STEERING_H
#define HARP_DPDK_GLUE_XDP_STEERING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct xdp_steering {
  int ports, settings, sockets; /* descriptors of the maps; -1: none */
  int program, link;
  bool native;             /* the driver runs the program, before it makes a packet of the frame */
  _Atomic(uint64_t) *held; /* the map of local ports, one bit each; shared with the kernel */
};

/* Marks all descriptors as none, so that close may be called at any time. */
void harp_xdp_steering_init(struct xdp_steering *steering);
/* Makes the maps and loads the program. address: network order. sockets: queues of the interface.
 * several: it also gets frames that consist of several buffers. name: of the interface, for error.
 * 0, or a negative errno and one line in error. */
int harp_xdp_steering_open(struct xdp_steering *steering, const char *name, uint32_t address,
                           const uint8_t *mac, unsigned sockets, bool several, char *error);
/* Frames that arrive on the queue may go to this AF_XDP socket. 0, or a negative errno. */
int harp_xdp_steering_add(struct xdp_steering *steering, unsigned queue, int socket);
/* Attaches the program: frames go to the sockets from now on. As open. */
int harp_xdp_steering_attach(struct xdp_steering *steering, const char *name, int ifindex,
                             char *error);
/* Frames for the local ports are HARP's from now on. first, last: host order, both included. */
void harp_xdp_steering_hold(struct xdp_steering *steering, uint16_t first, uint16_t last);
/* The program's number in the kernel, as IFLA_XDP_PROG_ID shows it; 0: unknown. */
uint32_t harp_xdp_steering_program(const struct xdp_steering *steering);
/* Detaches the program, unless another process has a copy of the link. */
void harp_xdp_steering_close(struct xdp_steering *steering);

#endif
