/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Standard input and output as streams that never block the stack's only
 * thread. O_NONBLOCK is a property that other processes share (the shell's
 * terminal, the other ends of a pipeline), so it is never set on what was
 * inherited.
 */
#ifndef HARP_NC_STREAM_H
#define HARP_NC_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum nc_stream_kind {
  NC_STREAM_FILE,   /* the kernel takes and gives at once */
  NC_STREAM_OWN,    /* opened anew, and non-blocking */
  NC_STREAM_SOCKET, /* asked not to block, call by call */
  NC_STREAM_SHARED, /* may block beyond what poll() promises */
};

struct nc_stream {
  int fd;
  enum nc_stream_kind kind;
};

struct nc_stream nc_stream_input(int fd);
struct nc_stream nc_stream_output(int fd);
void nc_stream_close(struct nc_stream *stream);

/* Bytes; 0: the end; -EAGAIN, or what the system said. */
ssize_t nc_stream_read(const struct nc_stream *stream, void *data, size_t length);
/* Bytes; -EAGAIN, -EPIPE, or what the system said. */
ssize_t nc_stream_write(const struct nc_stream *stream, const void *data, size_t length);

#endif
