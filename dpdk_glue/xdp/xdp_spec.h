/* SPDX-License-Identifier: Apache-2.0 */
/* What stands behind "xdp:": an interface, and options such as "eth0,mode=copy". */
#ifndef HARP_DPDK_GLUE_XDP_SPEC_H
#define HARP_DPDK_GLUE_XDP_SPEC_H

#include <net/if.h>

enum xdp_mode {
  XDP_MODE_AUTO,     /* zero-copy if the driver has it */
  XDP_MODE_ZEROCOPY, /* the NIC reads and writes the sockets' memory, or open fails */
  XDP_MODE_COPY,     /* the kernel copies frames from and to the sockets' memory */
};

enum xdp_sender {
  XDP_SENDER_AUTO, /* the AF_XDP socket in zero-copy mode, and a packet socket in copy mode */
  XDP_SENDER_XDP,  /* the AF_XDP socket in both modes */
};

struct xdp_spec {
  char interface[IF_NAMESIZE];
  enum xdp_mode mode;
  enum xdp_sender sender;
};

/* Reads IFACE[,mode=auto|zerocopy|copy][,send=auto|xdp]. 0, or -EINVAL and one line in error. */
int harp_xdp_spec_read(struct xdp_spec *spec, const char *device, char *error);

#endif
