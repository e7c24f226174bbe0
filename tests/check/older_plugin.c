/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A HARP of an older release: this release's plugin behind a listen that writes other wire versions
 * into its handles. Compile it with -DREAL="path of the plugin" -DLOWEST=n -DHIGHEST=n.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#include "plugin/nccl/nccl_types.h"

/* Bytes of a handle before its check (plugin/link/protocol.h). The check is FNV-1a. It is written
 * out here, because the older release has its own copy, too. */
enum { CHECKED = 44 };

/* harp/loader.py takes a library with this text for HARP's plugin. */
const char mark[] = "HARP_CONF_DIR";

ncclNet_v8_t ncclNetPlugin_v8;
static const ncclNet_v8_t *real;

static ncclResult_t older_listen(int device, void *handle, void **listener)
{
  uint8_t *bytes = handle;
  uint32_t check = 2166136261u;
  ncclResult_t result = real->listen(device, handle, listener);
  bytes[2] = LOWEST;
  bytes[3] = HIGHEST;
  for (int i = 0; i < CHECKED; i++) {
    check = (check ^ bytes[i]) * 16777619u;
  }
  for (int i = 0; i < 4; i++) {
    bytes[CHECKED + i] = (uint8_t)(check >> (24 - 8 * i));
  }
  return result;
}

__attribute__((constructor)) static void load(void)
{
  void *library = dlopen(REAL, RTLD_NOW | RTLD_LOCAL);
  real = library ? dlsym(library, "ncclNetPlugin_v8") : NULL;
  if (real) {
    ncclNetPlugin_v8 = *real;
  }
  ncclNetPlugin_v8.listen = older_listen;
}
