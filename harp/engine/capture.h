/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of an instance's frames for `harp capture`. The frames of some ports reach no packet
 * socket, so the instance sends the copies itself.
 *
 * An instance listens at an abstract UNIX address of its network namespace (unix(7)):
 * "harp-capture-ID-N". ID is the name of the statistics file without its suffix, and N the
 * instance's number. A reader connects by SOCK_SEQPACKET and sends a struct harp_capture_request.
 * Each frame then arrives as one datagram. The kernel runs the reader's own filter on it. Only root
 * and the user of this process may read.
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

enum {
  HARP_CAPTURE_VERSION = 1,
  HARP_CAPTURE_READERS = 4, /* at a time; further ones wait */
};

/* What a reader wants from now on. Integers have the host's byte order. */
struct harp_capture_request {
  uint32_t version; /* HARP_CAPTURE_VERSION */
  uint32_t sent;    /* 1: frames that the instance sends; 0: those that it receives */
  uint32_t keep;    /* first bytes of each frame; 0: no frames */
};

struct harp_capture_reader {
  int fd;
  struct harp_capture_request request; /* zeroed until it has come */
};

struct harp_capture {
  int listener; /* -1: none */
  unsigned count;
  struct harp_capture_reader readers[HARP_CAPTURE_READERS];
};

/* Begins to listen. path: of the statistics file. 0, or a negative errno; then there are no
 * captures of this instance. */
int harp_capture_open(struct harp_capture *capture, const char *path, unsigned instance);
/* Also in a forked child, which has copies of the descriptors. */
void harp_capture_close(struct harp_capture *capture);

/* Takes new readers and requests, and drops readers that have ended. Never blocks. */
void harp_capture_serve(struct harp_capture *capture);

/* Copies a frame to the readers that want it. Adds the number of readers that miss it to *lost.
 * Never blocks. */
void harp_capture_frame(struct harp_capture *capture, bool sent, const struct iovec *iov,
                        unsigned count, uint64_t *lost);

#endif
