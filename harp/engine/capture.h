/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of an instance's frames for `harp capture`. The frames of some ports reach no packet
 * socket, so the instance sends the copies itself.
 *
 * An instance listens at a UNIX socket "ID-N.capture" beside the statistics file. ID is that file's
 * name without its suffix, and N the instance's number. A reader connects by SOCK_SEQPACKET and
 * sends a struct harp_capture_request. Each frame then arrives as one datagram. The kernel runs the
 * reader's own filter on it.
 *
 * Only root and the user of this process may read. The socket's mode keeps all other users away:
 * they cannot connect, and so they cannot take the place of a reader.
 *
 * A slow reader loses frames (counter capture_lost). It never delays the instance.
 *
 * Thread: under the poll lock.
 */
#ifndef HARP_ENGINE_CAPTURE_H
#define HARP_ENGINE_CAPTURE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "harp/engine/rundir.h"

enum {
  HARP_CAPTURE_VERSION = 1,
  HARP_CAPTURE_USERS = 4,   /* readers at a time that are not root; further ones are refused */
  HARP_CAPTURE_READERS = 6, /* with those of root */
};

/* What a reader wants from now on. Integers have the host's byte order. */
struct harp_capture_request {
  uint32_t version; /* HARP_CAPTURE_VERSION */
  uint32_t sent;    /* 1: frames that the instance sends; 0: those that it receives */
  uint32_t keep;    /* first bytes of each frame; 0: no frames */
};

struct harp_capture_reader {
  int fd;
  bool root;
  struct harp_capture_request request; /* zeroed until it has come */
};

struct harp_capture {
  int listener;                  /* -1: none */
  char path[HARP_RUN_PATH_SIZE]; /* of the socket; "": none */
  unsigned count;
  struct harp_capture_reader readers[HARP_CAPTURE_READERS];
};

/* Begins to listen. statistics: path of the file. 0, or a negative errno; then there are no
 * captures of this instance. */
int harp_capture_open(struct harp_capture *capture, const char *statistics, unsigned instance);
/* Closes all sockets and removes the listening one from its folder. */
void harp_capture_close(struct harp_capture *capture);
/* In a forked child: closes its copies of the descriptors. */
void harp_capture_forget(struct harp_capture *capture);

/* Takes new readers and requests, and drops readers that have ended. Never blocks. */
void harp_capture_serve(struct harp_capture *capture);

/* Copies a frame to the readers that want it. Adds the number of readers that miss it to *lost.
 * Never blocks. */
void harp_capture_frame(struct harp_capture *capture, bool sent, const struct iovec *iov,
                        unsigned count, uint64_t *lost);

#endif
