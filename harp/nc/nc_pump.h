/* SPDX-License-Identifier: Apache-2.0 */
/* Moves bytes both ways until both sides have finished. */
#ifndef HARP_NC_PUMP_H
#define HARP_NC_PUMP_H

#include <netinet/tcp.h>

#include "harp/nc/nc.h"
#include "harp/nc/stream.h"

/* Bytes between a stream and the socket. The buffer is refilled only when it is empty, so a slow
 * output stops its source and memory stays bounded. */
struct nc_buffer {
  uint8_t *data;
  size_t start, end;
};

struct nc_pump {
  struct nc *nc;
  struct nc_stream input, output;
  struct nc_buffer to_peer, to_output;
  bool input_ended;             /* standard input is at its end */
  bool shut;                    /* the sending side of the socket is closed */
  bool peer_ended;              /* the peer's FIN and all its data were read */
  uint64_t bytes_out, bytes_in; /* accepted by the stack; written to standard output */
  uint64_t began_ns, moved_ns;  /* time of the connection; time of the last byte moved */
  struct tcp_info info;         /* last values while the connection was open */
};

/* NC_WELL or NC_FAILED; on success the socket is closed. pump's numbers are valid in both cases.
 * The caller must call nc_pump_close. */
int nc_pump_run(struct nc_pump *pump, struct nc *nc);
void nc_pump_close(struct nc_pump *pump);

#endif
