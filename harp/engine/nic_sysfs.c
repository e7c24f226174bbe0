/* SPDX-License-Identifier: Apache-2.0 */
#include <glob.h>
#include <limits.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harp/engine/config_values.h"
#include "harp/engine/nic_sysfs.h"

enum { FASTEST_MBPS = 10 * 1000 * 1000 };

/* Reads the number in a sysfs file; otherwise: the result if there is none. */
static int number_in(const char *folder, const char *name, int otherwise)
{
  char path[PATH_MAX + 32];
  int value = otherwise;
  FILE *file;

  snprintf(path, sizeof(path), "%s/%s", folder, name);
  file = fopen(path, "re");
  if (!file) {
    return otherwise;
  }
  if (fscanf(file, "%d", &value) != 1) {
    value = otherwise;
  }
  fclose(file);
  return value;
}

/* Whether sysfs shows another interface of the same name. A container may see the host's sysfs. The
 * port reports later if the interface does not exist at all. */
static bool is_namesake(const char *folder, const char *interface)
{
  unsigned index = if_nametoindex(interface);

  return index != 0 && number_in(folder, "ifindex", 0) != (int)index;
}

/* Writes the PCI id of a device that DPDK drives; false: it is no PCI device. */
static bool dpdk_pci_id(const char *device, char id[HARP_PCI_ID_SIZE])
{
  char text[32];

  if (strncmp(device, "dpdk:", 5) != 0) {
    return false;
  }
  snprintf(text, sizeof(text), "%.*s", (int)strcspn(device + 5, ","), device + 5);
  return harp_pci_id_parse(text, id);
}

/* Writes the path of the device's folder in sysfs; false: it has none. */
static bool device_link(const char *device, const char *root, char *out, size_t size)
{
  char interface[IF_NAMESIZE], id[HARP_PCI_ID_SIZE];

  if (dpdk_pci_id(device, id)) {
    return snprintf(out, size, "%s/sys/bus/pci/devices/%s", root, id) < (int)size;
  }
  if (!harp_config_interface(device, interface) ||
      snprintf(out, size, "%s/sys/class/net/%s", root, interface) >= (int)size ||
      is_namesake(out, interface)) {
    return false;
  }
  strncat(out, "/device", size - strlen(out) - 1);
  return true;
}

/* Writes the path of the NIC's folder in sysfs; false: it has none. The key pci_path comes first.
 */
static bool nic_link(const struct harp_config *config, const char *root, char *out, size_t size)
{
  if (config->pci_path[0]) {
    return snprintf(out, size, "%s%s", root, config->pci_path) < (int)size;
  }
  return device_link(harp_config_innermost(config->device), root, out, size);
}

/* Truncates the path after its last PCI function, because virtio devices are on a bus below it.
 * false: the path has no PCI function. */
static bool end_at_function(char *path)
{
  char id[HARP_PCI_ID_SIZE];

  for (char *slash; (slash = strrchr(path, '/')); *slash = '\0') {
    if (harp_pci_id_parse(slash + 1, id)) {
      return true;
    }
  }
  return false;
}

/* The number of folders in path after its first `shared` bytes. */
static unsigned steps(const char *path, size_t shared)
{
  unsigned count = 0;

  for (const char *at = path + shared; *at; at++) {
    count += *at == '/';
  }
  return count;
}

/* The length of the folders that both paths begin with, bytes. */
static size_t shared_length(const char *a, const char *b)
{
  size_t end = 0;

  for (size_t i = 0;; i++) {
    if ((a[i] == '/' || !a[i]) && (b[i] == '/' || !b[i])) {
      end = i;
    }
    if (!a[i] || a[i] != b[i]) {
      return end;
    }
  }
}

/* Whether the shared folders include a host bridge, pciDDDD:BB. */
static bool below_one_bridge(const char *path, size_t shared)
{
  const char *bridge = strstr(path, "/pci");

  return bridge && shared >= (size_t)(bridge - path) + 1 + strcspn(bridge + 1, "/");
}

unsigned harp_nic_distance(const struct harp_config *config, const char *gpu, const char *root)
{
  char link[PATH_MAX], one[PATH_MAX], other[PATH_MAX];
  size_t shared;

  if (!gpu[0] || !nic_link(config, root, link, sizeof(link)) || !realpath(link, one) ||
      !end_at_function(one)) {
    return HARP_NEAR_UNKNOWN;
  }
  snprintf(link, sizeof(link), "%s/sys/bus/pci/devices/%s", root, gpu);
  if (!realpath(link, other)) {
    return HARP_NEAR_UNKNOWN;
  }
  shared = shared_length(one, other);
  if (below_one_bridge(one, shared)) {
    return steps(one, shared) + steps(other, shared);
  }
  return number_in(one, "numa_node", -1) == number_in(other, "numa_node", -1) ? HARP_NEAR_NODE
                                                                              : HARP_NEAR_SYSTEM;
}

/* Drivers report an unknown speed as -1, 65535 or an impossible value. */
static uint32_t speed_in(const char *interface)
{
  int speed = number_in(interface, "speed", 0);

  return speed > 0 && speed <= FASTEST_MBPS && speed != UINT16_MAX ? (uint32_t)speed : 0;
}

/* The speed of the fastest interface of a PCI function, Mbit/s; 0: unknown. */
static uint32_t speed_of_function(const char *function)
{
  char pattern[PATH_MAX + 8];
  uint32_t fastest = 0;
  glob_t found;

  snprintf(pattern, sizeof(pattern), "%s/net/*", function);
  if (glob(pattern, GLOB_NOSORT, NULL, &found) != 0) {
    return 0;
  }
  for (size_t i = 0; i < found.gl_pathc; i++) {
    uint32_t speed = speed_in(found.gl_pathv[i]);

    fastest = speed > fastest ? speed : fastest;
  }
  globfree(&found);
  return fastest;
}

uint32_t harp_nic_speed(const struct harp_config *config, const char *root)
{
  char interface[IF_NAMESIZE], link[PATH_MAX], function[PATH_MAX];

  if (harp_config_interface(config->device, interface)) {
    int length = snprintf(link, sizeof(link), "%s/sys/class/net/%s", root, interface);

    return length < (int)sizeof(link) && !is_namesake(link, interface) ? speed_in(link) : 0;
  }
  if (!nic_link(config, root, link, sizeof(link)) || !realpath(link, function) ||
      !end_at_function(function)) {
    return 0;
  }
  return speed_of_function(function);
}

/* --- Which NIC it is --- */

/* Writes the resolved path of a device's PCI function; false: it has none. */
static bool function_of(const char *device, const char *root, char out[PATH_MAX])
{
  char link[PATH_MAX];

  return device_link(device, root, link, sizeof(link)) && realpath(link, out) &&
         end_at_function(out);
}

void harp_nic_function(const struct harp_config *config, const char *root, char *out, size_t size)
{
  char function[PATH_MAX];

  out[0] = '\0';
  if (function_of(harp_config_innermost(config->device), root, function) &&
      snprintf(out, size, "%s", function) >= (int)size) {
    out[0] = '\0';
  }
}

void harp_nic_identity(const struct harp_config *config, const char *root, char *out, size_t size)
{
  const char *device = harp_config_innermost(config->device);
  char interface[IF_NAMESIZE], function[PATH_MAX], folder[PATH_MAX], id[HARP_PCI_ID_SIZE];
  bool kernels = harp_config_interface(device, interface);
  int port = 0;

  if (!function_of(device, root, function)) {
    snprintf(out, size, "%s", dpdk_pci_id(device, id) ? id : kernels ? interface : device);
    return;
  }
  if (kernels && snprintf(folder, sizeof(folder), "%s/sys/class/net/%s", root, interface) <
                     (int)sizeof(folder)) {
    port = number_in(folder, "dev_port", 0);
  }
  snprintf(out, size, port ? "%s/%d" : "%s", strrchr(function, '/') + 1, port);
}
