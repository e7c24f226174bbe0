/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/dpdk/ethdev_spec.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dpdk_glue/fail.h"

static const struct {
  const char *name;
  size_t offset;
  uint32_t least, most; /* both 0: a boolean */
} options[] = {
    {"tx_checksum", offsetof(struct ethdev_spec, tx_checksum), 0, 0},
    {"rx_checksum", offsetof(struct ethdev_spec, rx_checksum), 0, 0},
    {"tso", offsetof(struct ethdev_spec, tso), 0, 0},
    {"lro", offsetof(struct ethdev_spec, lro), 0, 0},
    {"rss", offsetof(struct ethdev_spec, rss), 0, 0},
    {"reference", offsetof(struct ethdev_spec, reference), 0, 0},
    {"descriptors", offsetof(struct ethdev_spec, descriptors), 64, 4096},
    {"regions", offsetof(struct ethdev_spec, regions), 1, 65536},
};
enum { OPTIONS = sizeof(options) / sizeof(options[0]) };

static int bad_option(const char *text, const char *item, char *error)
{
  return harp_port_fail(error, -EINVAL,
                        "dpdk:%.120s: unknown option '%.40s'; the options after a semicolon are "
                        "tx_checksum, rx_checksum, tso, lro, rss, reference (each 0 or 1), "
                        "descriptors (64 to 4096) and regions (1 to 65536)",
                        text, item);
}

static bool set_option(struct ethdev_spec *spec, char *item)
{
  char *value = strchr(item, '='), *end;
  if (!value || !isdigit((unsigned char)value[1])) {
    return false;
  }
  *value++ = '\0';
  unsigned long number = strtoul(value, &end, 10);
  if (*end) {
    return false;
  }
  for (int i = 0; i < OPTIONS; i++) {
    if (strcmp(options[i].name, item) != 0) {
      continue;
    }
    void *field = (char *)spec + options[i].offset;
    bool flag = options[i].most == 0;
    if (number < options[i].least || number > (flag ? 1 : options[i].most)) {
      return false;
    }
    if (flag) {
      *(bool *)field = number != 0;
    } else {
      *(uint32_t *)field = (uint32_t)number;
    }
    return true;
  }
  return false;
}

/* Recognizes "0000:00:06.0", with or without the domain, and makes it canonical in devargs and
 * name. */
static void find_pci(struct ethdev_spec *spec)
{
  unsigned domain = 0, bus, device, function;
  int used = 0;
  char rest[sizeof(spec->devargs)];
  const char *text = spec->devargs;
  if (sscanf(text, "%x:%x:%x.%u%n", &domain, &bus, &device, &function, &used) != 4) {
    domain = 0;
    if (sscanf(text, "%x:%x.%u%n", &bus, &device, &function, &used) != 3) {
      return;
    }
  }
  if (text[used] && text[used] != ',') {
    return;
  }
  spec->pci = true;
  snprintf(rest, sizeof(rest), "%s", text + used);
  snprintf(spec->name, sizeof(spec->name), "%04x:%02x:%02x.%u", domain & 0xffff, bus & 0xff,
           device & 0x1f, function & 7);
  snprintf(spec->devargs, sizeof(spec->devargs), "%s%.200s", spec->name, rest);
}

/* Returns true if the devargs contain ",key="; copies the value into out. */
static bool find_argument(const struct ethdev_spec *spec, const char *key, char *out, size_t size)
{
  char pattern[32];
  snprintf(pattern, sizeof(pattern), ",%s=", key);
  const char *at = strstr(spec->devargs, pattern);
  if (!at) {
    return false;
  }
  at += strlen(pattern);
  snprintf(out, size, "%.*s", (int)strcspn(at, ","), at);
  return true;
}

static bool begins(const char *text, const char *word)
{
  return strncmp(text, word, strlen(word)) == 0;
}

static void find_socket(struct ethdev_spec *spec)
{
  char yes[8] = "";
  if (begins(spec->name, "virtio_user")) {
    find_argument(spec, "path", spec->socket, sizeof(spec->socket));
    spec->serves = find_argument(spec, "server", yes, sizeof(yes)) && strcmp(yes, "1") == 0;
  } else if (begins(spec->name, "net_vhost") || begins(spec->name, "eth_vhost")) {
    find_argument(spec, "iface", spec->socket, sizeof(spec->socket));
    spec->serves = !find_argument(spec, "client", yes, sizeof(yes)) || strcmp(yes, "1") != 0;
  }
}

int harp_ethdev_spec_parse(struct ethdev_spec *spec, const char *text, char *error)
{
  *spec = (struct ethdev_spec){
      .tx_checksum = true,
      .rx_checksum = true,
      .tso = true,
      .lro = true,
      .rss = true,
      .reference = true,
  };
  char copy[320], *rest = copy;
  if (snprintf(copy, sizeof(copy), "%s", text) >= (int)sizeof(copy)) {
    return harp_port_fail(error, -EINVAL, "dpdk:%.100s...: longer than %d characters", text,
                          (int)sizeof(copy) - 1);
  }
  snprintf(spec->devargs, sizeof(spec->devargs), "%.255s", strsep(&rest, ";"));
  for (char *item; (item = strsep(&rest, ";"));) {
    char named[48];
    snprintf(named, sizeof(named), "%.47s", item);
    if (!set_option(spec, item)) {
      return bad_option(text, named, error);
    }
  }
  snprintf(spec->name, sizeof(spec->name), "%.*s", (int)strcspn(spec->devargs, ","), spec->devargs);
  if (!spec->name[0]) {
    return harp_port_fail(error, -EINVAL,
                          "dpdk:%.100s: names no device; write a PCI id as in "
                          "dpdk:0000:00:06.0, or DPDK's devargs",
                          text);
  }
  find_pci(spec);
  find_socket(spec);
  return 0;
}
