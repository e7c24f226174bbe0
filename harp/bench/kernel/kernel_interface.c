/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the interface. NCCL_SOCKET_IFNAME has NCCL's syntax ("eth,ib": prefixes; "=eth0": exact
 * names; "^docker": all others). The default is the first interface that is up, has an IPv4 address
 * and is no loopback.
 */
#include <errno.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harp/bench/kernel/kernel.h"

static bool name_matches(const char *name, const char *pattern, size_t length, bool exact)
{
  return strncmp(name, pattern, length) == 0 && (!exact || name[length] == '\0');
}

static bool in_list(const char *name, const char *list, bool exact)
{
  while (*list) {
    size_t length = strcspn(list, ",");
    if (length && name_matches(name, list, length, exact)) {
      return true;
    }
    list += length + (list[length] == ',');
  }
  return false;
}

static bool wanted(const struct ifaddrs *candidate, const char *pattern)
{
  if (!candidate->ifa_addr || candidate->ifa_addr->sa_family != AF_INET ||
      !(candidate->ifa_flags & IFF_UP)) {
    return false;
  }
  if (!pattern || !*pattern) {
    return !(candidate->ifa_flags & IFF_LOOPBACK);
  }
  bool inverted = *pattern == '^';
  pattern += inverted;
  bool exact = *pattern == '=';
  pattern += exact;
  return in_list(candidate->ifa_name, pattern, exact) != inverted;
}

int kernel_find_interface(struct kernel_settings *settings)
{
  const char *pattern = getenv("NCCL_SOCKET_IFNAME");
  struct ifaddrs *list;
  if (getifaddrs(&list)) {
    int error = -errno;
    kernel_warn("NET/KERNEL: cannot list the host's interfaces: %s", strerror(-error));
    return error;
  }
  const struct ifaddrs *candidate = list;
  while (candidate && !wanted(candidate, pattern)) {
    candidate = candidate->ifa_next;
  }
  if (candidate) {
    snprintf(settings->interface, sizeof(settings->interface), "%s", candidate->ifa_name);
    settings->address = ((const struct sockaddr_in *)(const void *)candidate->ifa_addr)->sin_addr;
  }
  freeifaddrs(list);
  if (candidate) {
    return 0;
  }
  kernel_warn("NET/KERNEL: no interface that is up and has an IPv4 address matches "
              "NCCL_SOCKET_IFNAME=%s: set it to one that `ip -4 address` shows",
              pattern ? pattern : "(unset: all but loopback)");
  return -ENODEV;
}
