/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface that a transport implements once. The shims (nccl_v4.c ... nccl_v12.c) turn every
 * version of NCCL's net API into these calls. HARP's links implement them in libnccl-net.so, plain
 * kernel sockets in libnccl-net-kernel.so.
 *
 * Every function returns 0 or a negative errno. Only nccl_result.c turns an errno into NCCL's code
 * for an API version. No function blocks unless its comment says so. "Bounded": HARP's function
 * runs calls on instances, which usually takes microseconds. It waits at most 1 s for a worker that
 * does not answer, once for each call on an instance. Service threads: NCCL's threads that call
 * init, finalize, listen, connect, accept, register and close. Progress thread: the one that calls
 * isend, irecv and test.
 */
#ifndef HARP_PLUGIN_NET_H
#define HARP_PLUGIN_NET_H

#include <stddef.h>
#include <stdint.h>

#include "plugin/nccl/nccl_types.h"

struct net_link; /* one direction of an NCCL connection: a "comm" */
struct net_listener;
struct net_region; /* registered memory */
struct net_request;

enum { NET_HANDLE_SIZE = 64 }; /* bytes; the smallest handle of any NCCL release */

/* What NCCL says about a receive's completion. Version 9 and later mark a receive whose completion
 * is optional: the GPU finds flags among the data and does not wait for it. */
enum net_completion { NET_COMPLETION_UNKNOWN, NET_COMPLETION_NEEDED, NET_COMPLETION_OPTIONAL };

struct net_properties {
  const char *name;     /* as pci_path: valid until the last finalize */
  const char *pci_path; /* NIC's folder in sysfs; NULL: a virtual NIC */
  uint64_t guid;
  int speed_mbps;
  int port;
  int max_comms;
  float latency_us;
};

extern const char net_name[]; /* "HARP" */

/* init may be called several times: all calls share what the first one opened, and the last
 * finalize closes it. Everything that can fail is done in init, so that NCCL can still fall back.
 * context: receives the communicator's context; NULL before version 11, which has neither contexts
 * nor finalize. finalize of NULL returns 0 and ends nothing; finalize of an unknown or ended
 * context returns -EINVAL. Both may block. Service thread. */
int net_init(ncclDebugLogger_t logger, void **context);
int net_finalize(void *context);
/* -ENODEV: no init; -EPERM: a forked child; -EINVAL: no such device. Any thread. */
int net_devices(int *count);
int net_get_properties(int device, struct net_properties *properties);

/* handle: receives NET_HANDLE_SIZE bytes that NCCL sends to the peer. Bounded. */
int net_listen(int device, void *handle, struct net_listener **listener);
/* *link stays NULL while the link is not ready; NCCL calls again with the same handle, to which
 * connect may write. connect fails after timeout_ms, and does not wait for the peer's accept.
 * Bounded. Both also free links that have failed; connect frees those that NCCL has abandoned. */
int net_connect(int device, void *handle, struct net_link **link);
int net_accept(struct net_listener *listener, struct net_link **link);
/* type: NCCL_PTR_HOST only. *region may be set to any non-NULL token. */
int net_register(struct net_link *link, void *data, size_t size, int type,
                 struct net_region **region);
/* Bounded. Ends the link, as net_close does, if the link has failed or an outstanding request uses
 * the region. */
int net_deregister(struct net_link *link, struct net_region *region);
/* User memory is not touched afterwards, even with outstanding requests. Bounded: up to three calls
 * on each instance that serves the link. The close of an idle link first waits up to 2 s for the
 * acknowledgements of copied short messages. */
int net_close(struct net_link *link);
/* Bounded. Also ends the links that NCCL has not accepted. */
int net_close_listener(struct net_listener *listener);

/* Progress thread. *request is NULL if no request can be taken now. A request ends with *done = 1
 * or an error of test, and must not be used afterwards. */
int net_isend(struct net_link *link, const void *data, size_t size, struct net_region *region,
              struct net_request **request);
int net_irecv(struct net_link *link, void *data, size_t capacity, struct net_region *region,
              enum net_completion completion, struct net_request **request);
/* size: bytes transferred; for a receive it may be less than its capacity. */
int net_test(struct net_request *request, int *done, size_t *size);

#endif
