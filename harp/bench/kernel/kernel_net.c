/* SPDX-License-Identifier: Apache-2.0 */
/* Settings, properties and the log of the process. */
#include "plugin/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "harp/bench/kernel/kernel.h"
#include "plugin/contexts.h"

enum { DEFAULT_SPEED_MBPS = 10000, DEFAULT_TIMEOUT_MS = 60000, LOG_LINE = 512 };

const char net_name[] = "KERNEL";

struct kernel_settings kernel_settings;

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static int init_count; /* init_lock protects it and the contexts */
static struct net_contexts contexts;
static ncclDebugLogger_t logger;
static char pci_path[PATH_MAX]; /* "" for a virtual device */
static int speed_mbps;

static void log_line(ncclDebugLogLevel level, const char *format, va_list arguments)
{
  char line[LOG_LINE];
  if (!logger) {
    return;
  }
  vsnprintf(line, sizeof(line), format, arguments);
  logger(level, NCCL_INIT | NCCL_NET, __FILE__, __LINE__, "%s", line);
}

void kernel_warn(const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  log_line(NCCL_LOG_WARN, format, arguments);
  va_end(arguments);
}

static void inform(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void inform(const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  log_line(NCCL_LOG_INFO, format, arguments);
  va_end(arguments);
}

uint64_t kernel_now_ms(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static int setting_of_sockets(struct kernel_settings *settings)
{
  const char *text = getenv("HARP_KERNEL_NSOCKS");
  if (!text || !*text || strcmp(text, "1") == 0) {
    settings->sockets = 1;
  } else if (strcmp(text, "2") == 0) {
    settings->sockets = 2;
  } else if (strcmp(text, "4") == 0) {
    settings->sockets = 4;
  } else {
    kernel_warn("NET/KERNEL: HARP_KERNEL_NSOCKS=%s: set it to 1, 2 or 4 sockets per link", text);
    return -EINVAL;
  }
  return 0;
}

static int setting_of_timeout(struct kernel_settings *settings)
{
  const char *text = getenv("HARP_TIMEOUT_MS");
  char *end;
  settings->timeout_ms = DEFAULT_TIMEOUT_MS;
  if (!text || !*text) {
    return 0;
  }
  long value = strtol(text, &end, 10);
  if (*end || value < 100 || value > 3600 * 1000) {
    kernel_warn("NET/KERNEL: HARP_TIMEOUT_MS=%s: set it to 100-3600000 milliseconds", text);
    return -EINVAL;
  }
  settings->timeout_ms = (int)value;
  return 0;
}

/*
 * The default of HARP_KERNEL_CC is cubic, because a system default of bbr without fq would be slow
 * and the comparison unfair. A name from the user must work; cubic may fail.
 */
static int setting_of_congestion(struct kernel_settings *settings)
{
  const char *text = getenv("HARP_KERNEL_CC");
  bool named = text && *text;
  const char *name = named ? text : "cubic";
  int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int error = probe < 0 ||
                      setsockopt(probe, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name))
                  ? -errno
                  : 0;
  if (probe >= 0) {
    close(probe);
  }
  if (!error) {
    snprintf(settings->congestion, sizeof(settings->congestion), "%s", name);
  } else if (named) {
    kernel_warn("NET/KERNEL: HARP_KERNEL_CC=%s: the kernel rejects it: %s. Load its module, or "
                "list it in net.ipv4.tcp_allowed_congestion_control of the initial namespace",
                name, strerror(-error));
  } else {
    inform("NET/KERNEL: the kernel rejects cubic (%s); using the system's default",
           strerror(-error));
  }
  return named ? error : 0;
}

static void read_device(const char *interface)
{
  char path[PATH_MAX], text[16] = "";
  snprintf(path, sizeof(path), "/sys/class/net/%s/device", interface);
  if (!realpath(path, pci_path)) {
    pci_path[0] = '\0';
  }
  snprintf(path, sizeof(path), "/sys/class/net/%s/speed", interface);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd >= 0 && read(fd, text, sizeof(text) - 1) < 0) {
    text[0] = '\0'; /* virtual devices and devices that are down report no speed */
  }
  if (fd >= 0) {
    close(fd);
  }
  speed_mbps = atoi(text) > 0 ? atoi(text) : DEFAULT_SPEED_MBPS;
}

static int first_init(void)
{
  struct kernel_settings settings = {0};
  int error = setting_of_sockets(&settings);
  if (!error) {
    error = setting_of_timeout(&settings);
  }
  if (!error) {
    error = kernel_find_interface(&settings);
  }
  if (!error) {
    error = setting_of_congestion(&settings);
  }
  if (error) {
    return error;
  }
  read_device(settings.interface);
  kernel_settings = settings;
  char address[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, &settings.address, address, sizeof(address));
  inform("NET/KERNEL: %s %s, %d sockets per link, congestion control %s", settings.interface,
         address, settings.sockets, settings.congestion[0] ? settings.congestion : "of the system");
  return 0;
}

int net_init(ncclDebugLogger_t log, void **context)
{
  pthread_mutex_lock(&init_lock);
  if (log) {
    logger = log;
  }
  int error = init_count ? 0 : first_init();
  if (!error && context) {
    error = contexts_add(&contexts, context);
  }
  if (!error) {
    init_count++;
  }
  pthread_mutex_unlock(&init_lock);
  return error;
}

int net_finalize(void *context)
{
  if (!context) {
    return 0;
  }
  pthread_mutex_lock(&init_lock);
  bool known = contexts_remove(&contexts, context);
  init_count -= known;
  pthread_mutex_unlock(&init_lock);
  return known ? 0 : -EINVAL;
}

int net_devices(int *count)
{
  *count = 1;
  return 0;
}

int net_get_properties(int device, struct net_properties *properties)
{
  if (device != 0) {
    return -EINVAL;
  }
  *properties = (struct net_properties){
      .name = kernel_settings.interface,
      .pci_path = pci_path[0] ? pci_path : NULL,
      .guid = 0,
      .speed_mbps = speed_mbps,
      .port = 0,
      .max_comms = 65536,
      .latency_us = 0,
  };
  return 0;
}

/* Sockets need no registration. The token only has to be non-NULL. */
int net_register(struct net_link *link, void *data, size_t size, int type,
                 struct net_region **region)
{
  if (type != NCCL_PTR_HOST) {
    return -EINVAL;
  }
  *region = (struct net_region *)link;
  return 0;
}

int net_deregister(struct net_link *link, struct net_region *region)
{
  return (struct net_link *)region == link ? 0 : -EINVAL;
}
