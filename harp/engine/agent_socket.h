/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the node's agent listens.
 */
#ifndef HARP_ENGINE_AGENT_SOCKET_H
#define HARP_ENGINE_AGENT_SOCKET_H

#define HARP_AGENT_SOCKET "/run/harp/agent.sock"

/* The value of HARP_AGENT, if it is set, or else HARP_AGENT_SOCKET, if an agent listens there.
 * NULL: the process uses its own privileges. The text lives as long as the environment. Any thread.
 */
const char *harp_agent_socket(void);

#endif
