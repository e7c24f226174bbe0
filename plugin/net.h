/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a transport implements once. The shims (nccl_v4.c ... nccl_v12.c) turn
 * every version of NCCL's net API into these calls; HARP's links implement
 * them in libnccl-net.so, plain kernel sockets in libnccl-net-kernel.so.
 *
 * Every function returns 0 or a negative errno; nccl_result.c is the one
 * place that turns an errno into NCCL's code for a given API version.
 * Nothing blocks unless it says so.
 */
#ifndef HARP_PLUGIN_NET_H
#define HARP_PLUGIN_NET_H

#include <stddef.h>
#include <stdint.h>

#include "plugin/nccl/nccl_types.h"

struct net_link; /* one direction of a NCCL connection: a "comm" */
struct net_listener;
struct net_region; /* registered memory */
struct net_request;

enum { NET_HANDLE_SIZE = 64 }; /* what every NCCL release gives at least */

struct net_properties {
  const char *name;     /* static */
  const char *pci_path; /* NIC's folder in sysfs, or NULL for a virtual one */
  uint64_t guid;
  int speed_mbps;
  int port;
  int max_comms;
  float latency_us;
};

extern const char net_name[]; /* "HARP" */

/* Service thread. init may be called again: all share what the first one opened,
 * and the last one's finalize closes it. init does everything that can fail, so
 * that NCCL can still fall back. context: where the communicator's own is put; NULL
 * before version 11, which has neither contexts nor a finalize.
 * finalize of a context that init has not given, or that has ended, ends nothing:
 * 0 for NULL, else -EINVAL. */
int net_init(ncclDebugLogger_t logger, void **context);
int net_finalize(void *context);
int net_devices(int *count);
int net_get_properties(int device, struct net_properties *properties);

/* handle: NET_HANDLE_SIZE bytes that travel to the peer. */
int net_listen(int device, void *handle, struct net_listener **listener);
/* *link stays NULL while it is not ready: call again with the same handle,
 * whose bytes are scratch of this rank's copy. Times out by itself. Completes
 * without the peer calling accept. */
int net_connect(int device, void *handle, struct net_link **link);
int net_accept(struct net_listener *listener, struct net_link **link);
/* type: NCCL_PTR_HOST only. *region may be set to any non-NULL token. */
int net_register(struct net_link *link, void *data, size_t size, int type,
                 struct net_region **region);
int net_deregister(struct net_link *link, struct net_region *region);
/* Prompt even with requests outstanding; afterwards the user's memory is never
 * touched again. */
int net_close(struct net_link *link);
int net_close_listener(struct net_listener *listener);

/* Progress thread. *request stays NULL if nothing can be taken now. The
 * request is dead after *done = 1 or an error. */
int net_isend(struct net_link *link, const void *data, size_t size, struct net_region *region,
              struct net_request **request);
int net_irecv(struct net_link *link, void *data, size_t capacity, struct net_region *region,
              struct net_request **request);
/* size: bytes moved; a receive's may be below its capacity. */
int net_test(struct net_request *request, int *done, size_t *size);

#endif
