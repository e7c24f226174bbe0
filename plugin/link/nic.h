/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A NIC that this process drives, as links see it: its engine, and the flows of each instance.
 *
 * Thread: the functions run on NCCL's service threads, unless their comments name others.
 */
#ifndef HARP_PLUGIN_NIC_H
#define HARP_PLUGIN_NIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "harp/engine/engine.h"

struct link_flow;
struct net_listener;
struct transport;
struct transport_nic;
struct used_port;

enum { LINK_DRAIN_MS = 2000 }; /* close: limit for the acknowledgements of short messages */

enum nic_state {
  NIC_OPENED, /* no instance runs; nic_start changes that */
  NIC_STARTED,
  NIC_FAILED, /* it could not be started; the home NIC serves in its place */
};

/* One instance of a NIC; everything under its poll lock. */
struct nic_instance {
  struct harp_ticker ticker;
  struct transport_nic *nic;
  struct harp_instance *instance;
  /* All flows. Those without link and listener linger, or are new connections of other flows. */
  struct link_flow *flows;
  struct link_flow *unauth_oldest, *unauth_newest; /* connected, no hello yet */
  unsigned unauthenticated;
  struct used_port *used_ports;
};

struct transport_nic {
  struct transport *transport;
  struct harp_engine *engine;
  unsigned device;  /* its index among the host's devices */
  atomic_int state; /* enum nic_state */
  struct nic_instance parts[HARP_ENGINE_INSTANCES];
  atomic_bool published[HARP_STAT_FLOWS]; /* entries of the statistics file in use */
  /* With several NICs of the process: the port that accepts flows which move here, and flows of
   * links that are spread over NICs. 0: none. */
  uint16_t shared_port;
  struct net_listener *shared_listener;
};

/* Creates the NIC of a device. NULL: no memory. */
struct transport_nic *nic_create(struct transport *transport, unsigned device);
/* Starts the NIC at its first use. true: it runs. A failure is logged once. Any thread of NCCL's.
 */
bool nic_start(struct transport_nic *nic);
/* The engine has started: ticks begin, and the shared port listens. 0, or a negative errno. */
int nic_begin(struct transport_nic *nic);
/* Logs what the NIC is. */
void nic_introduce(const struct transport_nic *nic);
/* Ends all flows at once, because the engine is closed next. */
void nic_drop_flows(struct transport_nic *nic);

/* Any thread. */
static inline bool nic_runs(const struct transport_nic *nic)
{
  return atomic_load_explicit(&nic->state, memory_order_acquire) == NIC_STARTED;
}
/* Whether links that are opened on this NIC are spread over all NICs of the process. Any thread. */
bool nic_stripes(const struct transport_nic *nic);
/* The remedy for an error of harp_engine_reserve, for the log. Any thread. */
const char *nic_port_remedy(int result);

/* The number of instances of a NIC that runs. Any thread. */
static inline unsigned nic_instances(const struct transport_nic *nic)
{
  return nic->engine->instance_count;
}
/* Returns the next running NIC of the process; after NULL: the first running one. NULL: there is
 * none. Any thread. */
struct transport_nic *nic_next(const struct transport *transport,
                               const struct transport_nic *after);

/* Releases a local port after a delay. Late segments of the peer must meet HARP's connection in
 * TIME-WAIT, not the kernel. Under the poll lock. */
void nic_delay_port_release(struct nic_instance *at, uint16_t port);

/* --- devices.c --- */

/* The NIC of a device if this process drives it and it has not failed, else NULL. device: any
 * number. Any thread. */
struct transport_nic *nic_driven(const struct transport *transport, unsigned device);

/* Whether the host has a device of this index. device: any number. Any thread. */
bool device_exists(const struct transport *transport, int device);

/* The two functions below return a NIC that runs. */

/* The NIC that serves listen on a device: the device's own NIC if this process drives it, else the
 * home NIC. */
struct transport_nic *nic_for_listen(struct transport *transport, unsigned device);
/* The NIC that connects to a listener: the NIC of the peer's device, else that of this device, else
 * the one in the subnet of the address (network order), else the home NIC. A NIC that cannot reach
 * the address is passed over. peer_device: HARP_DEVICES_MAX if the peer does not tell. */
struct transport_nic *nic_for_connect(struct transport *transport, unsigned device,
                                      unsigned peer_device, uint32_t address);

#endif
