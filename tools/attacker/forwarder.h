/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forwards frames between two wires, unchanged and in order. Its user can insert frames in both
 * directions. Attacking programs are built on it.
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
  /* Called for every received frame with its source end. false: drop the frame. */
  bool (*seen)(void *user, enum forwarder_end from, const struct harp_rx_frame *frame);
  void *user;
};

/* Opens the ports. victim, other: paths of wires whose other ends belong to the two hosts.
 * error: the reason on failure, HARP_PORT_ERROR_SIZE bytes. */
int forwarder_open(struct forwarder *forwarder, const char *victim, const char *other, char *error);
void forwarder_close(struct forwarder *forwarder);

/* Sends a whole frame to the host at that end. The frame may be delayed until forwarder_flush.
 * vouched: the frame carries the note that a device has verified its checksum. -EAGAIN: the wire
 * is full. */
int forwarder_put(struct forwarder *forwarder, enum forwarder_end end, const uint8_t *bytes,
                  uint32_t length, uint16_t segment_size, bool vouched);
void forwarder_flush(struct forwarder *forwarder, enum forwarder_end end);

/* Forwards one burst in each direction. A full wire loses frames. Returns the number of received
 * frames. */
int forwarder_pass(struct forwarder *forwarder);

/* Waits at most ms milliseconds for a frame or for fd to become readable. Returns true if fd is
 * readable. fd -1: none. */
bool forwarder_wait(struct forwarder *forwarder, int fd, int ms);

#endif
