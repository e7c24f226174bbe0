/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface in an agent's reply.
 */
#ifndef HARP_DPDK_GLUE_AGENT_DEVICE_H
#define HARP_DPDK_GLUE_AGENT_DEVICE_H

#include "dpdk_glue/agent/agent_message.h"
#include "dpdk_glue/kernel/netdev.h"

/* Copies the interface's properties from a reply, and into one. */
void harp_agent_read_device(struct harp_netdev *device, const struct harp_agent_reply *reply);
void harp_agent_write_device(struct harp_agent_reply *reply, const struct harp_netdev *device);

#endif
