/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/net.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "harp/collectives/collectives.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct netapi api;
static _Atomic int devices; /* 0: not open */

static pthread_mutex_t warning_lock = PTHREAD_MUTEX_INITIALIZER;
static char warning[512];

static void keep_warning(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                         const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Stands for NCCL's logger: warnings go to standard error, and the last one is kept. A plugin that
 * declines may say why in a line for information. */
static void keep_warning(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                         const char *format, ...)
{
  if (level > NCCL_LOG_WARN && devices) {
    return; /* with HARP_DEBUG=1 the plugin itself prints every line */
  }
  pthread_mutex_lock(&warning_lock);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(warning, sizeof(warning), format, arguments);
  va_end(arguments);
  /* A plugin that declines goes on with what NCCL does next, and here is no NCCL. */
  char *of_nccl = strstr(warning, "; NCCL goes on without HARP");
  if (of_nccl) {
    *of_nccl = 0;
  }
  if (level <= NCCL_LOG_WARN) {
    fprintf(stderr, "harp.torch: %s\n", warning);
  }
  pthread_mutex_unlock(&warning_lock);
}

void net_take_warning(char *text, size_t size)
{
  pthread_mutex_lock(&warning_lock);
  snprintf(text, size, "%s", warning);
  warning[0] = 0;
  pthread_mutex_unlock(&warning_lock);
}

static bool forked; /* written once, by the only thread of a new process */

static void in_child(void) { forked = true; }

bool net_forked(void) { return forked; }

int net_refuse_fork(char *error)
{
  if (!forked) {
    return 0;
  }
  snprintf(error, HARP_ERROR,
           "this process was forked from one that uses HARP, and cannot use HARP itself: fork "
           "before the first call, or start it by spawn or exec");
  return -1;
}

static int open_plugin(const char *path, char *error)
{
  char why[NETAPI_ERROR];
  int count = 0;
  if (!path) {
    snprintf(error, HARP_ERROR, "no net plugin is open: pass its path to the first call");
    return -1;
  }
  if (!api.library && netapi_open(&api, path, 0, why)) {
    snprintf(error, HARP_ERROR, "%s", why);
    return -1;
  }
  ncclResult_t result = api.init(keep_warning);
  if (result == ncclSuccess) {
    result = api.devices(&count);
  }
  if (result != ncclSuccess || count < 1) {
    net_take_warning(why, sizeof why);
    snprintf(error, HARP_ERROR, "%s cannot run on this host (%s): %s; `harp doctor` says more",
             api.name, netapi_result_name(result), why[0] ? why : "it has no NIC");
    return -1;
  }
  net_take_warning(why, sizeof why); /* a line for information */
  pthread_atfork(NULL, NULL, in_child);
  devices = count;
  return 0;
}

int net_open(const char *path, char *error)
{
  if (net_refuse_fork(error)) {
    return -1;
  }
  pthread_mutex_lock(&lock);
  int result = devices ? 0 : open_plugin(path, error);
  pthread_mutex_unlock(&lock);
  return result;
}

const struct netapi *net_api(void) { return &api; }

int net_devices(void) { return devices; }
