/* SPDX-License-Identifier: Apache-2.0 */
/* xdp devices in a build without clang: open always fails. */
#include "harp/agent/agent_reply.h"

enum agent_status agent_open_xdp(const struct harp_port_config *config, bool vnet)
{
  struct harp_agent_reply reply = {0};
  struct harp_port *port;
  return agent_refuse(&reply, harp_port_open(&port, "xdp:", config, reply.error));
}
