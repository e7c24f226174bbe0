/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One version of NCCL's net interface over plugin/net.h. A file nccl_vN.c defines API as N and
 * includes this file. The functions below then have that version's signatures, and NCCL looks up
 * the table at the end. The compiler checks every signature against plugin/nccl/nccl_types.h.
 *
 * NCCL 2.19 to 2.30 treat a connection as made even if connect or accept failed, and close what
 * they got. So every output is NULL after an error. Closing or deregistering NULL succeeds; accept,
 * regMr, isend, irecv and test fail with NULL. So plugin/net.h never gets a NULL object.
 *
 * This file has no include guard: its content depends on API.
 */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "plugin/nccl/nccl_result.h"
#include "plugin/net.h"

#define SHIM_PASTE_(a, n, b) a##n##b
#define SHIM_PASTE(a, n, b) SHIM_PASTE_(a, n, b)

/* Differences between the versions' signatures. */
#if API >= 11
#define CONTEXT void *context,
#else
#define CONTEXT
#endif
#if API == 10
#define CONNECT_CONFIG ncclNetCommConfig_v10_t *config,
#else
#define CONNECT_CONFIG
#endif
#if API >= 7
#define DEVICE_COMM , ncclNetDeviceHandle_v7_t **device_comm
#else
#define DEVICE_COMM
#endif
#if API >= 10
#define PROFILER_HANDLE void *phandle,
#define PROFILER_HANDLES void **phandles,
#else
#define PROFILER_HANDLE
#define PROFILER_HANDLES
#endif
#if API >= 8
typedef size_t register_size;
#else
typedef int register_size;
#endif
#if API >= 9
typedef size_t transfer_size;
#else
typedef int transfer_size;
#endif
#if API >= 12
typedef ncclNetProperties_v12_t shim_properties;
#elif API == 11
typedef ncclNetProperties_v11_t shim_properties;
#elif API >= 9
typedef ncclNetProperties_v9_t shim_properties;
#elif API == 8
typedef ncclNetProperties_v8_t shim_properties;
#elif API == 7
typedef ncclNetProperties_v7_t shim_properties;
#elif API >= 5
typedef ncclNetProperties_v5_t shim_properties;
#else
typedef ncclNetProperties_v4_t shim_properties;
#endif

#if API >= 11
static ncclResult_t shim_init(void **context, uint64_t comm_id, ncclNetCommConfig_v10_t *config,
                              ncclDebugLogger_t logger, ncclProfilerCallback_t profiler)
{
  *context = NULL;
  return nccl_result(net_init(logger, context), API);
}

static ncclResult_t shim_finalize(void *context) { return nccl_result(net_finalize(context), API); }
#elif API == 10
static ncclResult_t shim_init(ncclDebugLogger_t logger, ncclProfilerCallback_t profiler)
{
  return nccl_result(net_init(logger, NULL), API);
}
#else
static ncclResult_t shim_init(ncclDebugLogger_t logger)
{
  return nccl_result(net_init(logger, NULL), API);
}
#endif

static ncclResult_t shim_devices(int *count) { return nccl_result(net_devices(count), API); }

static ncclResult_t shim_properties_get(int device, shim_properties *out)
{
  struct net_properties properties;
  int error = net_get_properties(device, &properties);
  memset(out, 0, sizeof(*out));
  if (error) {
    return nccl_result(error, API);
  }
  /* NCCL declares them without const and does not write to them. */
  out->name = (char *)(uintptr_t)properties.name;
  out->pciPath = (char *)(uintptr_t)properties.pci_path;
  out->guid = properties.guid;
  out->ptrSupport = NCCL_PTR_HOST;
  out->speed = properties.speed_mbps;
  out->port = properties.port;
  out->maxComms = properties.max_comms;
#if API >= 5
  out->latency = properties.latency_us;
  out->maxRecvs = 1;
#endif
#if API >= 7
  out->netDeviceType = NCCL_NET_DEVICE_HOST;
  out->netDeviceVersion = 0;
#endif
#if API >= 8
  out->regIsGlobal = 0;
#endif
#if API >= 9
  out->forceFlush = 0;
  out->vProps.ndevs = 1;
  out->vProps.devs[0] = device;
  /* test() reports sizes as int, so messages must stay below INT_MAX. */
  out->maxP2pBytes = (size_t)1 << 30;
  out->maxCollBytes = (size_t)1 << 30;
#endif
#if API >= 11
  out->maxMultiRequestSize = 1;
#endif
#if API >= 12
  out->railId = NCCL_NET_ID_UNDEF;
  out->planeId = NCCL_NET_ID_UNDEF;
#endif
  return ncclSuccess;
}

static ncclResult_t shim_listen(CONTEXT int device, void *handle, void **listener)
{
  struct net_listener *made = NULL;
  int error = net_listen(device, handle, &made);
  *listener = made;
  return nccl_result(error, API);
}

#if API == 4
/*
 * In version 4, connect and accept block until the comm exists. net_connect times out by itself,
 * but accept needs a limit for a peer that never connects. Ranks may start late, but once they have
 * exchanged handles two minutes are enough.
 */
enum { BLOCK_STEP_NS = 50 * 1000, BLOCK_LIMIT_S = 120 };

static time_t block_now(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

/* Whether to call again, after a pause. Sets *error to -ETIMEDOUT after the limit. */
static bool block_more(time_t start, const struct net_link *link, int *error)
{
  struct timespec pause = {.tv_nsec = BLOCK_STEP_NS};
  if (*error || link) {
    return false;
  }
  if (block_now() - start >= BLOCK_LIMIT_S) {
    *error = -ETIMEDOUT;
    return false;
  }
  nanosleep(&pause, NULL);
  return true;
}

static ncclResult_t shim_connect(int device, void *handle, void **comm)
{
  time_t start = block_now();
  struct net_link *link = NULL;
  int error;
  do {
    error = net_connect(device, handle, &link);
  } while (block_more(start, link, &error));
  *comm = link;
  return nccl_result(error, API);
}

static ncclResult_t shim_accept(void *listener, void **comm)
{
  time_t start = block_now();
  struct net_link *link = NULL;
  int error;
  do {
    error = listener ? net_accept(listener, &link) : -EINVAL;
  } while (block_more(start, link, &error));
  *comm = link;
  return nccl_result(error, API);
}
#else
static ncclResult_t shim_connect(CONTEXT int device, CONNECT_CONFIG void *handle,
                                 void **comm DEVICE_COMM)
{
  struct net_link *link = NULL;
  int error = net_connect(device, handle, &link);
  *comm = link;
  return nccl_result(error, API);
}

static ncclResult_t shim_accept(void *listener, void **comm DEVICE_COMM)
{
  struct net_link *link = NULL;
  int error = listener ? net_accept(listener, &link) : -EINVAL;
  *comm = link;
  return nccl_result(error, API);
}
#endif

static ncclResult_t shim_register(void *comm, void *data, register_size size, int type,
                                  void **mhandle)
{
  struct net_region *region = NULL;
#if API < 8
  bool valid = comm && size >= 0;
#else
  bool valid = comm;
#endif
  int error = valid ? net_register(comm, data, (size_t)size, type, &region) : -EINVAL;
  *mhandle = region;
  return nccl_result(error, API);
}

static ncclResult_t shim_deregister(void *comm, void *mhandle)
{
  return nccl_result(comm && mhandle ? net_deregister(comm, mhandle) : 0, API);
}

/* *request is always written, because it may hold any value on entry. From version 9 on, irecv may
 * find NCCL_NET_OPTIONAL_RECV_COMPLETION there. */
static ncclResult_t shim_send(void *comm, const void *data, size_t size, void *mhandle,
                              void **request)
{
  struct net_request *made = NULL;
  bool valid = comm && size <= INT_MAX;
  int error = valid ? net_isend(comm, data, size, mhandle, &made) : -EINVAL;
  *request = made;
  return nccl_result(error, API);
}

/* What NCCL says of the receive's completion. From version 9 on, it marks the receives of LL and
 * LL128. */
static enum net_completion shim_completion(void *mark)
{
#if API >= 9
  return (uintptr_t)mark == NCCL_NET_OPTIONAL_RECV_COMPLETION ? NET_COMPLETION_OPTIONAL
                                                              : NET_COMPLETION_NEEDED;
#else
  return NET_COMPLETION_UNKNOWN;
#endif
}

static ncclResult_t shim_receive(void *comm, void *data, size_t size, void *mhandle, void **request)
{
  struct net_request *made = NULL;
  bool valid = comm && size <= INT_MAX;
  int error = valid ? net_irecv(comm, data, size, mhandle, shim_completion(*request), &made)
                    : -EINVAL;
  *request = made;
  return nccl_result(error, API);
}

/* A negative int becomes a size_t above INT_MAX, which shim_send and shim_receive reject. */
#if API == 4
static ncclResult_t shim_isend(void *comm, void *data, int size, void *mhandle, void **request)
{
  return shim_send(comm, data, (size_t)size, mhandle, request);
}

static ncclResult_t shim_irecv(void *comm, void *data, int size, void *mhandle, void **request)
{
  return shim_receive(comm, data, (size_t)size, mhandle, request);
}

static ncclResult_t shim_iflush(void *comm, void *data, int size, void *mhandle, void **request)
{
  *request = NULL;
  return ncclSuccess;
}
#else
static ncclResult_t shim_isend(void *comm, void *data, transfer_size size, int tag, void *mhandle,
                               PROFILER_HANDLE void **request)
{
  return shim_send(comm, data, (size_t)size, mhandle, request);
}

/* maxRecvs is 1, so a group has one receive and needs no tags. */
static ncclResult_t shim_irecv(void *comm, int n, void **data, transfer_size *sizes, int *tags,
                               void **mhandles, PROFILER_HANDLES void **request)
{
  if (n != 1) {
    *request = NULL;
    return nccl_result(-EINVAL, API);
  }
  return shim_receive(comm, data[0], (size_t)sizes[0], mhandles ? mhandles[0] : NULL, request);
}

/* Host memory needs no flush. A NULL request means that the flush has completed. */
static ncclResult_t shim_iflush(void *comm, int n, void **data, int *sizes, void **mhandles,
                                void **request)
{
  *request = NULL;
  return ncclSuccess;
}
#endif

static ncclResult_t shim_test(void *request, int *done, int *size)
{
  size_t moved = 0;
  *done = 0;
  int error = request ? net_test(request, done, &moved) : -EINVAL;
  if (!error && *done && size) {
    *size = (int)moved;
  }
  return nccl_result(error, API);
}

static ncclResult_t shim_close(void *comm) { return nccl_result(comm ? net_close(comm) : 0, API); }

static ncclResult_t shim_close_listener(void *listener)
{
  return nccl_result(listener ? net_close_listener(listener) : 0, API);
}

/* These optional functions stay NULL: regMrDmaBuf, getDeviceMr, irecvConsumed, makeVDevice,
 * setNetAttr. */
__attribute__((visibility("default"))) extern const SHIM_PASTE(ncclNet_v, API, _t)
    SHIM_PASTE(ncclNetPlugin_v, API, );

const SHIM_PASTE(ncclNet_v, API, _t) SHIM_PASTE(ncclNetPlugin_v, API, ) = {
    .name = net_name,
    .init = shim_init,
    .devices = shim_devices,
    .getProperties = shim_properties_get,
    .listen = shim_listen,
    .connect = shim_connect,
    .accept = shim_accept,
    .regMr = shim_register,
    .deregMr = shim_deregister,
    .isend = shim_isend,
    .irecv = shim_irecv,
    .iflush = shim_iflush,
    .test = shim_test,
    .closeSend = shim_close,
    .closeRecv = shim_close,
    .closeListen = shim_close_listener,
#if API >= 11
    .finalize = shim_finalize,
#endif
};
