/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices: what NCCL is told about the host's NICs, and which NIC serves a device.
 *
 * A device's index means the same NIC on every rank of a host. NCCL calls listen in the process of
 * a channel's first GPU on the host, and connect in that of its last. Every GPU of a socket
 * is equally near without GPUDirect, so NCCL often gives one process several NICs.
 */
#include <errno.h>

#include "plugin/link/link.h"

enum { MAX_COMMS = HARP_ENGINE_CONNECTIONS }; /* links of one flow each */

struct transport_nic *nic_driven(const struct transport *transport, unsigned device)
{
  struct transport_nic *nic = device < HARP_DEVICES_MAX ? transport->of_device[device] : NULL;
  return nic && atomic_load(&nic->state) != NIC_FAILED ? nic : NULL;
}

struct transport_nic *nic_for_listen(struct transport *transport, unsigned device)
{
  struct transport_nic *nic = nic_driven(transport, device);
  return nic && nic_start(nic) ? nic : transport->home;
}

/* The NIC whose subnet contains the address. */
static struct transport_nic *in_subnet(const struct transport *transport, uint32_t address)
{
  for (unsigned i = 0; i < transport->nics.claims.devices.count; i++) {
    struct transport_nic *nic = nic_driven(transport, i);
    if (nic && harp_engine_on_link(nic->engine, address)) {
      return nic;
    }
  }
  return NULL;
}

struct transport_nic *nic_for_connect(struct transport *transport, unsigned device,
                                      unsigned peer_device, uint32_t address)
{
  struct transport_nic *const order[] = {nic_driven(transport, peer_device),
                                         nic_driven(transport, device),
                                         in_subnet(transport, address), transport->home};
  for (unsigned i = 0; i < sizeof order / sizeof *order; i++) {
    struct transport_nic *nic = order[i];
    if (nic && harp_engine_reaches(nic->engine, address) && nic_start(nic)) {
      return nic;
    }
  }
  return transport->home;
}

bool device_exists(const struct transport *transport, int device)
{
  return device >= 0 && (unsigned)device < transport->nics.claims.devices.count;
}

/* --- plugin/net.h --- */

int net_devices(int *count)
{
  int error;
  const struct transport *transport = transport_get(&error);
  *count = transport ? (int)transport->nics.claims.devices.count : 0;
  return error;
}

/* Equal on every rank of a host: NCCL up to 2.21 fails or hangs if the ranks' views of their host
 * differ. So no value depends on what this process has claimed or opened. */
int net_get_properties(int device, struct net_properties *properties)
{
  int error;
  const struct transport *transport = transport_get(&error);
  if (!transport || !device_exists(transport, device)) {
    return transport ? -EINVAL : error;
  }
  const struct harp_device *of = &transport->nics.claims.devices.of[device];
  *properties = (struct net_properties){
      .name = transport->names[device],
      .pci_path = of->pci_path[0] ? of->pci_path : NULL,
      .guid = of->guid,
      .speed_mbps = (int)of->speed_mbps,
      .port = 1,
      .max_comms = MAX_COMMS,
      .latency_us = 0,
  };
  return 0;
}
