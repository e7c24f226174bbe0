/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/agent/agent_device.h"

#include <string.h>

enum { UP = 1, CARRIER = 2, TSO = 4 };

void harp_agent_read_device(struct harp_netdev *device, const struct harp_agent_reply *reply)
{
  memset(device, 0, sizeof(*device));
  device->index = reply->index;
  device->up = reply->state & UP;
  device->carrier = reply->state & CARRIER;
  device->tso = reply->state & TSO;
  memcpy(device->mac, reply->mac, sizeof(device->mac));
  device->mtu = reply->mtu;
  device->gso_max = reply->gso_max;
  device->speed_mbps = reply->speed_mbps;
  device->address = reply->address;
  device->prefix = reply->prefix;
  device->gateway = reply->gateway;
  memcpy(device->pci_path, reply->pci_path, sizeof(device->pci_path) - 1);
}

void harp_agent_write_device(struct harp_agent_reply *reply, const struct harp_netdev *device)
{
  reply->index = device->index;
  reply->state = (uint8_t)((device->up ? UP : 0) | (device->carrier ? CARRIER : 0) |
                           (device->tso ? TSO : 0));
  memcpy(reply->mac, device->mac, sizeof(reply->mac));
  reply->mtu = device->mtu;
  reply->gso_max = device->gso_max;
  reply->speed_mbps = device->speed_mbps;
  reply->address = device->address;
  reply->prefix = device->prefix;
  reply->gateway = device->gateway;
  memcpy(reply->pci_path, device->pci_path, sizeof(reply->pci_path));
}
