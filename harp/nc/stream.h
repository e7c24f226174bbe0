/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Standard input and output as streams that never block the stack's only thread. Other processes
 * share the O_NONBLOCK flag (on the shell's terminal, at the other ends of a pipeline). So HARP
 * never sets it on an inherited descriptor.
 */
#ifndef HARP_NC_STREAM_H
#define HARP_NC_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum nc_stream_kind {
  NC_STREAM_FILE,   /* read and write return at once */
  NC_STREAM_OWN,    /* opened again by this process, non-blocking */
  NC_STREAM_SOCKET, /* each call has MSG_DONTWAIT */
  NC_STREAM_SHARED, /* a call may block although poll() reported the descriptor ready */
};

struct nc_stream {
  int fd;
  enum nc_stream_kind kind;
};

struct nc_stream nc_stream_input(int fd);
struct nc_stream nc_stream_output(int fd);
void nc_stream_close(struct nc_stream *stream);

/* Bytes read; 0: end of file; -EAGAIN or another negative errno. */
ssize_t nc_stream_read(const struct nc_stream *stream, void *data, size_t length);
/* Bytes written; -EAGAIN, -EPIPE or another negative errno. */
ssize_t nc_stream_write(const struct nc_stream *stream, const void *data, size_t length);

#endif
