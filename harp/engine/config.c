/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dpdk_glue/local_ports.h"
#include "harp/engine/config.h"
#include "harp/engine/config_values.h"
#include "harp/engine/variables.h"

enum {
  QUOTED_MAX = 64, /* bytes of an invalid value that an error line quotes */
  /* Bytes of a value and its end. The longest is `peers`: "255.255.255.255/32" and ", " each. */
  VALUE_SIZE = HARP_CONFIG_PEERS_MAX * 20 + 1,
};

const struct harp_config_key_info harp_config_key_info[HARP_CONFIG_KEYS] = {
#define HARP_KEY(name, kind, scope, preset, meaning, min, max, allowed, doc) \
  {#name, meaning, allowed, doc, min, max, scope},
#include "harp/engine/config_keys.def"
#undef HARP_KEY
};

static const struct {
  const struct harp_config_kind *kind;
  const char *preset;
  size_t offset;
} keys[HARP_CONFIG_KEYS] = {
#define HARP_KEY(name, kind, scope, preset, meaning, min, max, allowed, doc) \
  {&harp_config_##kind, preset, offsetof(struct harp_config, name)},
#include "harp/engine/config_keys.def"
#undef HARP_KEY
};

/* A part of the untrusted text. */
struct span {
  const char *start;
  size_t length;
};

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static struct span trim(struct span s)
{
  while (s.length > 0 && is_blank(s.start[0])) {
    s.start++;
    s.length--;
  }
  while (s.length > 0 && is_blank(s.start[s.length - 1])) {
    s.length--;
  }
  return s;
}

/* The part before the first character `at`; everything if there is none. */
static struct span cut(struct span s, char at)
{
  const char *found = s.length ? memchr(s.start, at, s.length) : NULL;

  if (found) {
    s.length = (size_t)(found - s.start);
  }
  return s;
}

/* Copies a part for an error line: shortened, and without control characters. */
static const char *quote(struct span s, char out[QUOTED_MAX + 4])
{
  size_t length = s.length < QUOTED_MAX ? s.length : QUOTED_MAX;

  for (size_t i = 0; i < length; i++) {
    unsigned char c = (unsigned char)s.start[i];
    out[i] = (char)(c < 0x20 || c >= 0x7f ? '?' : c);
  }
  memcpy(out + length, length < s.length ? "..." : "", length < s.length ? 4 : 1);
  return out;
}

int harp_config_fail(char *error, int code, const char *format, ...)
{
  va_list arguments;

  va_start(arguments, format);
  vsnprintf(error, HARP_CONFIG_ERROR_SIZE, format, arguments);
  va_end(arguments);
  return code;
}

static int find_key(struct span name)
{
  for (int i = 0; i < HARP_CONFIG_KEYS; i++) {
    if (strlen(harp_config_key_info[i].name) == name.length &&
        memcmp(harp_config_key_info[i].name, name.start, name.length) == 0) {
      return i;
    }
  }
  return -1;
}

/* where: the prefix of an error line, such as "FILE:3: "; "" for a text without a name. */
static int unknown_key(const char *where, struct span name, char *error)
{
  char quoted[QUOTED_MAX + 4], list[HARP_CONFIG_ERROR_SIZE / 2] = "";
  size_t used = 0;

  for (int i = 0; i < HARP_CONFIG_KEYS && used < sizeof(list); i++) {
    used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "",
                             harp_config_key_info[i].name);
  }
  quote(name, quoted);
  const char *meant = harp_variables_nearest_key(name.start, name.length);
  if (meant) {
    return harp_config_fail(error, -EINVAL, "%sunknown key '%s' (do you mean %s?); the keys are %s",
                            where, quoted, meant, list);
  }
  return harp_config_fail(error, -EINVAL, "%sunknown key '%s'; the keys are %s", where, quoted,
                          list);
}

static int bad_value(const char *where, int key, struct span value, char *error)
{
  const struct harp_config_key_info *info = &harp_config_key_info[key];
  char quoted[QUOTED_MAX + 4], range[64] = "";

  if (info->max != 0) {
    snprintf(range, sizeof(range), " from %llu to %llu", (unsigned long long)info->min,
             (unsigned long long)info->max);
  }
  if (value.length == 0) {
    return harp_config_fail(error, -EINVAL,
                            "%s%s has no value; expected %s%s, or leave the line out", where,
                            info->name, info->allowed, range);
  }
  return harp_config_fail(error, -EINVAL, "%s%s = '%s' is not allowed; expected %s%s", where,
                          info->name, quote(value, quoted), info->allowed, range);
}

static int set_value(struct harp_config *config, int key, struct span value, const char *where,
                     char *error)
{
  char text[VALUE_SIZE];

  if (value.length == 0 || value.length >= sizeof(text)) {
    return bad_value(where, key, value, error);
  }
  for (size_t i = 0; i < value.length; i++) {
    unsigned char c = (unsigned char)value.start[i];
    if ((c < 0x20 && c != '\t') || c == 0x7f) {
      return bad_value(where, key, value, error);
    }
  }
  memcpy(text, value.start, value.length);
  text[value.length] = '\0';
  if (!keys[key].kind->read(&harp_config_key_info[key], text, (char *)config + keys[key].offset)) {
    return bad_value(where, key, value, error);
  }
  return 0;
}

static int set_defaults(struct harp_config *config, const char *name, char *error)
{
  memset(config, 0, sizeof(*config));
  snprintf(config->path, sizeof(config->path), "%s", name);
  for (int key = 0; key < HARP_CONFIG_KEYS; key++) {
    const char *preset = keys[key].preset;

    if (preset &&
        set_value(config, key, (struct span){preset, strlen(preset)}, "default: ", error)) {
      return -EINVAL;
    }
  }
  return 0;
}

static int parse_line(struct harp_config *config, struct span line, unsigned number,
                      unsigned seen[HARP_CONFIG_KEYS], char *error)
{
  char where[224] = "", quoted[QUOTED_MAX + 4];
  struct span name, value;
  int key;

  line = trim(cut(line, '#'));
  if (line.length == 0) {
    return 0;
  }
  if (config->path[0]) {
    snprintf(where, sizeof(where), "%.200s:%u: ", config->path, number);
  }
  name = cut(line, '=');
  if (name.length == line.length) {
    return harp_config_fail(error, -EINVAL,
                            "%s'%s' is not of the form key = value; # starts a comment", where,
                            quote(line, quoted));
  }
  value = trim((struct span){name.start + name.length + 1, line.length - name.length - 1});
  name = trim(name);
  key = find_key(name);
  if (key < 0) {
    return unknown_key(where, name, error);
  }
  if (seen[key]) {
    return harp_config_fail(error, -EINVAL,
                            "%s%s is given twice, first in line %u; keep one of the lines", where,
                            harp_config_key_info[key].name, seen[key]);
  }
  seen[key] = number;
  config->source[key] = HARP_FROM_FILE;
  return set_value(config, key, value, where, error);
}

static int parse_text(struct harp_config *config, struct span text, char *error)
{
  unsigned seen[HARP_CONFIG_KEYS] = {0};

  for (unsigned number = 1; text.length > 0; number++) {
    struct span line = cut(text, '\n');
    size_t taken = line.length < text.length ? line.length + 1 : line.length;
    int rc = parse_line(config, line, number, seen, error);

    if (rc) {
      return rc;
    }
    text.start += taken;
    text.length -= taken;
  }
  return 0;
}

static void environment_name(int key, char out[32])
{
  size_t i;

  snprintf(out, 32, "HARP_%s", harp_config_key_info[key].name);
  for (i = 5; out[i]; i++) {
    if (out[i] >= 'a' && out[i] <= 'z') {
      out[i] = (char)(out[i] - 'a' + 'A');
    }
  }
}

static int apply_environment(struct harp_config *config, char *error)
{
  for (int key = 0; key < HARP_CONFIG_KEYS; key++) {
    char name[32], where[50];
    const char *value;
    int rc;

    environment_name(key, name);
    value = harp_config_key_info[key].file_only ? NULL : getenv(name);
    if (!value) {
      continue;
    }
    snprintf(where, sizeof(where), "environment, %s: ", name);
    rc = set_value(config, key, trim((struct span){value, strlen(value)}), where, error);
    if (rc) {
      return rc;
    }
    config->source[key] = HARP_FROM_ENVIRONMENT;
  }
  return 0;
}

static bool given(const struct harp_config *config, enum harp_config_key key)
{
  return config->source[key] != HARP_FROM_DEFAULT;
}

/* An address of HARP's own uses all dynamic ports (RFC 6335, 6) by default. */
static void default_ports(struct harp_config *config)
{
  if (!given(config, HARP_KEY_tcp_ports) && !config->address.kernel) {
    config->tcp_ports = (struct harp_config_ports){HARP_LOCAL_FIRST, HARP_LOCAL_LAST};
  }
}

/* A gateway must be inside the address's network, except for a /32 address. */
static int check_gateway(const struct harp_config *config, const char *where, char *error)
{
  char gateway[INET_ADDRSTRLEN];
  uint8_t prefix = config->address.prefix;

  if (config->gateway == 0 || config->address.kernel || prefix == 32 ||
      ((config->gateway ^ config->address.address) & harp_netmask(prefix)) == 0) {
    return 0;
  }
  return harp_config_fail(
      error, -EINVAL,
      "%sgateway = %s is outside the address's network (/%u), where no host could reach it; "
      "correct one of the two, or give the address as /32 if the gateway is on the link",
      where, inet_ntop(AF_INET, &config->gateway, gateway, sizeof(gateway)), prefix);
}

/* Checks keys that depend on each other, and sets defaults that depend on other keys. */
static int check_together(struct harp_config *config, char *error)
{
  char where[224] = "";
  char interface[IF_NAMESIZE];
  bool kernels;

  if (config->path[0]) {
    snprintf(where, sizeof(where), "%.200s: ", config->path);
  }
  if (!given(config, HARP_KEY_device)) {
    return harp_config_fail(error, -EINVAL, "%sdevice is missing; add a line device = %s", where,
                            harp_config_key_info[HARP_KEY_device].allowed);
  }
  kernels = harp_config_interface(config->device, interface);
  if (!given(config, HARP_KEY_address)) {
    if (!kernels) {
      return harp_config_fail(
          error, -EINVAL,
          "%saddress is missing: only packet and xdp devices can share the kernel's; "
          "add a line address = 10.0.3.7/24",
          where);
    }
    config->address.kernel = true;
  } else if (config->address.kernel && !kernels) {
    return harp_config_fail(
        error, -EINVAL,
        "%saddress = kernel needs a packet or xdp device, and device is '%.60s'; "
        "give HARP an address of its own",
        where, config->device);
  }
  if (config->instances == 0) {
    config->instances = config->cores.count;
  }
  if (config->instances > harp_config_key_info[HARP_KEY_instances].max) {
    return harp_config_fail(error, -EINVAL,
                            "%scores lists %u CPUs, one for each instance, and there are at most "
                            "%llu instances; list fewer CPUs",
                            where, config->cores.count,
                            (unsigned long long)harp_config_key_info[HARP_KEY_instances].max);
  }
  if (config->cores.count != 0 && config->cores.count != config->instances) {
    return harp_config_fail(error, -EINVAL,
                            "%scores lists %u CPUs for instances = %u; give one for each instance, "
                            "or leave cores out",
                            where, config->cores.count, config->instances);
  }
  default_ports(config);
  return check_gateway(config, where, error);
}

static int build(struct harp_config *config, struct span text, const char *name,
                 bool use_environment, char *error)
{
  int rc;

  error[0] = '\0';
  rc = set_defaults(config, name, error);
  if (rc == 0) {
    rc = parse_text(config, text, error);
  }
  if (rc == 0 && use_environment) {
    rc = apply_environment(config, error);
  }
  return rc ? rc : check_together(config, error);
}

int harp_config_parse(const char *text, size_t length, const char *name, struct harp_config *config,
                      char *error)
{
  return build(config, (struct span){text, length}, name, false, error);
}

/* Reads the file, up to capacity bytes. Returns the bytes read, or a negative errno. */
static ssize_t read_all(int fd, char *out, size_t capacity)
{
  size_t used = 0;

  while (used < capacity) {
    ssize_t got = pread(fd, out + used, capacity - used, (off_t)used);

    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return -errno;
    }
    if (got == 0) {
      break;
    }
    used += (size_t)got;
  }
  return (ssize_t)used;
}

int harp_config_read(int fd, const char *path, struct harp_config *config, char *error)
{
  char *text = malloc(HARP_CONFIG_FILE_MAX + 1);
  ssize_t length;
  int rc;

  if (!text) {
    return harp_config_fail(error, -ENOMEM, "%.200s: no memory to read it", path);
  }
  length = read_all(fd, text, HARP_CONFIG_FILE_MAX + 1);
  if (length < 0) {
    rc = harp_config_fail(error, (int)length,
                          "%.200s: cannot be read: %s; it must be a readable file", path,
                          strerror((int)-length));
  } else if (length > HARP_CONFIG_FILE_MAX) {
    rc = harp_config_fail(error, -EFBIG, "%.200s: larger than %d bytes: this is no ztcp*.conf",
                          path, HARP_CONFIG_FILE_MAX);
  } else {
    rc = build(config, (struct span){text, (size_t)length}, path, true, error);
  }
  free(text);
  return rc;
}

int harp_config_load(const char *path, struct harp_config *config, char *error)
{
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  int rc;

  if (fd < 0) {
    rc = errno;
    return harp_config_fail(error, -rc,
                            "%.200s: cannot be opened: %s; check the path and its permissions",
                            path, strerror(rc));
  }
  rc = harp_config_read(fd, path, config, error);
  close(fd);
  return rc;
}

char *harp_config_format(const struct harp_config *config, enum harp_config_key key, char *out,
                         size_t size)
{
  keys[key].kind->write((const char *)config + keys[key].offset, out, size);
  return out;
}

const char *harp_config_innermost(const char *device)
{
  while (strncmp(device, "fault:", 6) == 0) {
    const char *bar = strchr(device, '|');

    if (!bar) {
      return "";
    }
    device = bar + 1;
  }
  return device;
}

bool harp_config_has_scheme(const char *device, const char *scheme)
{
  const char *inner = harp_config_innermost(device);
  size_t length = strlen(scheme);

  return strncmp(inner, scheme, length) == 0 && inner[length] == ':';
}

bool harp_config_is_on_interface(const char *device)
{
  return harp_config_has_scheme(device, "packet") || harp_config_has_scheme(device, "xdp");
}

bool harp_config_interface(const char *device, char *name)
{
  const char *interface;
  size_t length;

  if (!harp_config_is_on_interface(device)) {
    return false;
  }
  interface = strchr(harp_config_innermost(device), ':') + 1;
  length = harp_config_has_scheme(device, "xdp") ? strcspn(interface, ",") : strlen(interface);
  if (length == 0 || length >= IF_NAMESIZE) {
    return false;
  }
  memcpy(name, interface, length);
  name[length] = '\0';
  return true;
}

/* An xdp device with options admits one process. The port of one without options is a packet port
 * in each further process. */
bool harp_config_shareable(const struct harp_config *config)
{
  const char *device = harp_config_innermost(config->device);
  bool plain_xdp = harp_config_has_scheme(device, "xdp") && !strchr(device, ',');
  return config->address.kernel && (plain_xdp || harp_config_has_scheme(device, "packet"));
}

bool harp_config_peer_allowed(const struct harp_config *config, uint32_t address)
{
  for (unsigned i = 0; i < config->peers.count; i++) {
    if ((address & config->peers.network[i].mask) == config->peers.network[i].address) {
      return true;
    }
  }
  return config->peers.count == 0;
}
