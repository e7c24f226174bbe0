/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp-agent-open: what it can open, and how it replies. The functions return the program's exit
 * status.
 */
#ifndef HARP_AGENT_AGENT_REPLY_H
#define HARP_AGENT_AGENT_REPLY_H

#include <stdbool.h>
#include <stdint.h>

#include "dpdk_glue/agent/agent_message.h"
#include "dpdk_glue/port.h"

enum agent_status {
  AGENT_DONE,     /* the client has its sockets */
  AGENT_REFUSED,  /* the client has got an error, which is also on standard error */
  AGENT_USAGE,    /* wrong arguments */
  AGENT_GONE,     /* the client is gone, or its buffer is full */
  AGENT_OCCUPIED, /* a port of the range is in use, and the client has got nothing */
};

/* Sends the reply with its descriptors to the client, and writes "socket INODE" to standard output
 * for each socket among them, and "address A.B.C.D". Never waits: a client that does not read gets
 * nothing. */
enum agent_status agent_reply(struct harp_agent_reply *reply, const int *fds, unsigned count);

/* Sends the error of a reply. rc: a negative errno. */
enum agent_status agent_refuse(struct harp_agent_reply *reply, int rc);

/* Writes the error for a filter that could not be locked, and returns rc. */
int agent_lock_failed(struct harp_agent_reply *reply, const char *device, int rc);

/* Whether another program uses a port of the range, host order. HARP would get its frames. address:
 * network order. */
bool agent_is_occupied(uint32_t address, unsigned first, unsigned last);

/* Opens a port's sockets for the client. config->ports_first to ports_last are the job's. vnet:
 * each frame of the packet socket has a virtio-net header. Jobs of earlier releases do not expect
 * it. */
enum agent_status agent_open_packet(const struct harp_port_config *config);
enum agent_status agent_open_xdp(const struct harp_port_config *config, bool vnet);

#endif
