/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/bench/netapi.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define API 4
#include "harp/bench/netapi_version.h"
#define API 5
#include "harp/bench/netapi_version.h"
#define API 6
#include "harp/bench/netapi_version.h"
#define API 7
#include "harp/bench/netapi_version.h"
#define API 8
#include "harp/bench/netapi_version.h"
#define API 9
#include "harp/bench/netapi_version.h"
#define API 10
#include "harp/bench/netapi_version.h"
#define API 11
#include "harp/bench/netapi_version.h"
#define API 12
#include "harp/bench/netapi_version.h"

static void (*const binders[])(struct netapi *, const void *) = {
    v4_bind, v5_bind, v6_bind, v7_bind, v8_bind, v9_bind, v10_bind, v11_bind, v12_bind,
};

static const void *find(void *library, int version)
{
  char symbol[32];
  snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", version);
  return dlsym(library, symbol);
}

int netapi_open(struct netapi *api, const char *path, int version, char *error)
{
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(error, NETAPI_ERROR, "%s cannot be loaded: %s", path, dlerror());
    return -1;
  }
  int candidate = version ? version : NETAPI_LAST;
  int last = version ? version : NETAPI_FIRST;
  for (; candidate >= last; candidate--) {
    const void *symbol = find(library, candidate);
    if (symbol) {
      binders[candidate - NETAPI_FIRST](api, symbol);
      api->library = library;
      return 0;
    }
  }
  if (version) {
    snprintf(error, NETAPI_ERROR, "%s has no ncclNetPlugin_v%d: choose another --api", path,
             version);
  } else {
    snprintf(error, NETAPI_ERROR, "%s has no ncclNetPlugin_v%d to v%d: not an NCCL net plugin",
             path, NETAPI_FIRST, NETAPI_LAST);
  }
  dlclose(library);
  return -1;
}

void netapi_close(struct netapi *api)
{
  dlclose(api->library);
  *api = (struct netapi){0};
}

const char *netapi_result_name(ncclResult_t result)
{
  static const char *const names[] = {
      [ncclSuccess] = "ncclSuccess",
      [ncclUnhandledCudaError] = "ncclUnhandledCudaError",
      [ncclSystemError] = "ncclSystemError",
      [ncclInternalError] = "ncclInternalError",
      [ncclInvalidArgument] = "ncclInvalidArgument",
      [ncclInvalidUsage] = "ncclInvalidUsage",
      [ncclRemoteError] = "ncclRemoteError",
  };
  size_t index = (size_t)result;
  return index < sizeof(names) / sizeof(names[0]) ? names[index] : "an unknown ncclResult_t";
}
