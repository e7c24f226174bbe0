/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sits between two wires: what comes by one goes on by the other, unchanged
 * and in order, and more can be put on either. Programs that mean one of the two
 * hosts no good are made of it.
 *
 * One thread. Errors: negative errno.
 */
#ifndef HARP_TOOLS_FORWARDER_H
#define HARP_TOOLS_FORWARDER_H

#include <stdbool.h>
#include <stdint.h>

#include "dpdk_glue/port.h"

enum forwarder_end { FORWARDER_VICTIM, FORWARDER_OTHER, FORWARDER_ENDS };

struct forwarder {
  struct harp_port *ports[FORWARDER_ENDS];
  /* Is shown every frame that comes, and from which end; false: it goes no further. */
  bool (*seen)(void *user, enum forwarder_end from, const struct harp_rx_frame *frame);
  void *user;
};

/* Fills in the ports. victim, other: paths of wires, whose other ends belong to the two
 * hosts. error: why not, HARP_PORT_ERROR_SIZE bytes. */
int forwarder_open(struct forwarder *forwarder, const char *victim, const char *other, char *error);
void forwarder_close(struct forwarder *forwarder);

/* A whole frame for the host at that end; it may be late until forwarder_flush. vouched: as if
 * a device had found its checksum good. -EAGAIN: the wire is full. */
int forwarder_put(struct forwarder *forwarder, enum forwarder_end end, const uint8_t *bytes,
                  uint32_t length, uint16_t segment_size, bool vouched);
void forwarder_flush(struct forwarder *forwarder, enum forwarder_end end);

/* Passes on a burst each way; a full wire loses frames, as wires do. How many came. */
int forwarder_pass(struct forwarder *forwarder);

/* Waits for a frame, for the descriptor to become readable, or so long at most. Whether the
 * descriptor is; fd -1: none. */
bool forwarder_wait(struct forwarder *forwarder, int fd, int ms);

#endif
