/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any NCCL net plugin, of any version of the interface, behind one set of calls. It plays NCCL's
 * part when NCCL loads a plugin.
 *
 * Every call forwards to the plugin and returns the plugin's result. One plugin and one version per
 * process.
 */
#ifndef HARP_BENCH_NETAPI_H
#define HARP_BENCH_NETAPI_H

#include <stddef.h>

#include "plugin/nccl/nccl_types.h"

enum { NETAPI_FIRST = 4, NETAPI_LAST = 12, NETAPI_ERROR = 512 };

struct netapi {
  void *library;
  int version;
  int max_requests;   /* most outstanding requests per communicator */
  size_t handle_size; /* bytes */
  const char *name;   /* the plugin's name */
  ncclResult_t (*init)(ncclDebugLogger_t logger);
  ncclResult_t (*finalize)(void); /* does nothing before version 11 */
  ncclResult_t (*devices)(int *count);
  ncclResult_t (*device_name)(int device, const char **name);
  ncclResult_t (*listen)(int device, void *handle, void **listener);
  ncclResult_t (*connect)(int device, void *handle, void **comm);
  ncclResult_t (*accept)(void *listener, void **comm);
  ncclResult_t (*register_memory)(void *comm, void *data, size_t size, void **mhandle);
  ncclResult_t (*deregister_memory)(void *comm, void *mhandle);
  ncclResult_t (*isend)(void *comm, void *data, size_t size, void *mhandle, void **request);
  ncclResult_t (*irecv)(void *comm, void *data, size_t size, void *mhandle, void **request);
  ncclResult_t (*test)(void *request, int *done, int *size);
  ncclResult_t (*close_send)(void *comm);
  ncclResult_t (*close_receive)(void *comm);
  ncclResult_t (*close_listener)(void *listener);
};

/* Loads path like NCCL. version 0: the plugin's highest. 0, or -1 with a sentence in
 * error[NETAPI_ERROR]. */
int netapi_open(struct netapi *api, const char *path, int version, char *error);
/* Unloads it, like NCCL after the last finalize. The caller must not call it again. */
void netapi_close(struct netapi *api);

const char *netapi_result_name(ncclResult_t result);

#endif
