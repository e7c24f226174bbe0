/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The side of a port that asks the node's agent. The agent opens what takes privileges, or the
 * node's network namespace, and passes the descriptors. No payload passes it.
 *
 * The connection stays open as long as the port. The agent takes the ports back after its end, as
 * soon as nobody has their sockets. An agent that restarts harms nobody: descriptors stay valid,
 * and the next request connects again.
 *
 * Threads: one call at a time for each object. harp_agent_open waits for 15 s at most.
 */
#ifndef HARP_DPDK_GLUE_AGENT_CLIENT_H
#define HARP_DPDK_GLUE_AGENT_CLIENT_H

#include <stdint.h>

#include "dpdk_glue/agent/agent_message.h"
#include "dpdk_glue/kernel/silent_listeners.h"
#include "dpdk_glue/port.h"

struct harp_agent {
  int fd;                  /* -1: not connected */
  int64_t deadline_ms;     /* of the exchange, on the monotonic clock */
  int64_t silent_until_ms; /* no request before: the last one had no answer */
  char path[108];          /* of the agent's socket; "": no agent is in use */
  char device[64];
  uint16_t ports_first, ports_last; /* granted, host order */
};

/* An object without a connection, which harp_agent_close may close. */
void harp_agent_init(struct harp_agent *agent);

/* Asks for the sockets of scheme:config->device, from the agent at config->agent. Stores the reply,
 * and its descriptors in fds, which has room for HARP_AGENT_DESCRIPTORS; the caller closes them.
 * Returns their number, or a negative errno and one line in error, as open in port.h. */
int harp_agent_open(struct harp_agent *agent, const char *scheme,
                    const struct harp_port_config *config, struct harp_agent_reply *reply, int *fds,
                    char *error);

/* As harp_silent_listeners_open, in the node's network namespace; block->first may not be 0. Waits
 * for 1 s at most. -ETIMEDOUT: the agent does not answer. It may be restarting: try again. */
int harp_agent_listen(struct harp_agent *agent, struct silent_block *block, int *fds);

/* Closes the connection and keeps its number, so that a forked child may call it. */
void harp_agent_close(const struct harp_agent *agent);

#endif
