/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sits between two wires: what comes by one goes on by the other, unchanged
 * and in order, and more can be put on either. Programs that mean one of the two
 * hosts no good are made of it.
 *
 * One thread. Errors: negative errno.
 */
#ifndef HARP_TESTING_BETWEEN_H
#define HARP_TESTING_BETWEEN_H

#include <stdbool.h>
#include <stdint.h>

#include "dpdk_glue/port.h"

enum between_end { BETWEEN_VICTIM, BETWEEN_OTHER, BETWEEN_ENDS };

struct between {
  struct harp_port *ports[BETWEEN_ENDS];
  /* Is shown every frame that comes, and from which end; false: it goes no further. */
  bool (*seen)(void *user, enum between_end from, const struct harp_rx_frame *frame);
  void *user;
};

/* Fills in the ports. victim, other: paths of wires, whose other ends belong to the two
 * hosts. error: why not, HARP_PORT_ERROR_SIZE bytes. */
int between_open(struct between *between, const char *victim, const char *other, char *error);
void between_close(struct between *between);

/* A whole frame for the host at that end; it may be late until between_flush. vouched: as if
 * a device had found its checksum good. -EAGAIN: the wire is full. */
int between_put(struct between *between, enum between_end end, const uint8_t *bytes,
                uint32_t length, uint16_t segment_size, bool vouched);
void between_flush(struct between *between, enum between_end end);

/* Passes on a burst each way; a full wire loses frames, as wires do. How many came. */
int between_pass(struct between *between);

/* Waits for a frame, for the descriptor to become readable, or so long at most. Whether the
 * descriptor is; fd -1: none. */
bool between_wait(struct between *between, int fd, int ms);

#endif
