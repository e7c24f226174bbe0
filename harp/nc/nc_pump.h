/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes both ways until both sides are done. */
#ifndef HARP_NC_PUMP_H
#define HARP_NC_PUMP_H

#include <netinet/tcp.h>

#include "harp/nc/nc.h"
#include "harp/nc/stream.h"

/* Bytes on their way between a stream and the socket. Only refilled when empty:
 * what does not go on makes its source wait, and memory stays this. */
struct nc_buffer {
  uint8_t *data;
  size_t start, end;
};

struct nc_pump {
  struct nc *nc;
  struct nc_stream input, output;
  struct nc_buffer to_peer, to_output;
  bool input_ended;             /* standard input is at its end ... */
  bool shut;                    /* ... and the peer is being told */
  bool peer_ended;              /* the peer has sent everything, and it was read */
  uint64_t bytes_out, bytes_in; /* taken by the stack; written to the output */
  uint64_t began_ns, moved_ns;  /* connected; last byte moved */
  struct tcp_info info;         /* as long as there was a connection */
};

/* NC_WELL or NC_FAILED; the socket is closed if all went well. pump may be
 * asked for its numbers in any case; nc_pump_close is due. */
int nc_pump_run(struct nc_pump *pump, struct nc *nc);
void nc_pump_close(struct nc_pump *pump);

#endif
