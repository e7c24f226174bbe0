/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a ztcp*.conf says, as typed fields: one file a NIC, lines "key = value",
 * "#" starts a comment. HARP_<KEY> in the environment wins over the file, the
 * file over the default; some keys belong to the file alone (config_keys.def).
 *
 * The text is untrusted: any bytes give either a configuration or one line that
 * names file, line, key and what is allowed.
 *
 * Thread: any; no function here keeps state.
 */
#ifndef HARP_ENGINE_CONFIG_H
#define HARP_ENGINE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  HARP_CONFIG_ERROR_SIZE = 512,
  HARP_CONFIG_FILE_MAX = 64 * 1024, /* bytes of a file */
  HARP_CONFIG_DEVICE_SIZE = 256,
  HARP_CONFIG_PATH_SIZE = 256,
  HARP_CONFIG_CORES_MAX = 64,
  HARP_CONFIG_PEERS_MAX = 64,
};

enum harp_config_key {
#define HARP_KEY(name, kind, scope, preset, meaning, min, max, allowed, doc) HARP_KEY_##name,
#include "harp/engine/config_keys.def"
#undef HARP_KEY
  HARP_CONFIG_KEYS
};

enum harp_config_source {
  HARP_FROM_DEFAULT,
  HARP_FROM_FILE,
  HARP_FROM_ENVIRONMENT,
};

struct harp_config_address {
  bool kernel;      /* share the interface's own; the rest is then zero */
  uint32_t address; /* network order */
  uint8_t prefix;   /* bits, 1-32 */
};

struct harp_config_cores {
  unsigned count; /* 0: workers are not pinned */
  uint16_t cpu[HARP_CONFIG_CORES_MAX];
};

struct harp_config_ports {
  uint16_t first, last; /* 0, 0: what the kernel grants */
};

struct harp_config_network {
  uint32_t address; /* network order, host bits zero */
  uint32_t mask;    /* network order */
};

struct harp_config_peers {
  unsigned count; /* 0: any */
  struct harp_config_network network[HARP_CONFIG_PEERS_MAX];
};

/* Fields carry the names of their keys. */
struct harp_config {
  char path[4096]; /* of the file; "" if it was parsed from memory without a name */

  char device[HARP_CONFIG_DEVICE_SIZE];
  struct harp_config_address address;
  uint32_t gateway;                     /* network order; 0: the device's own idea of it */
  uint16_t mtu;                         /* bytes; 0: the device's */
  uint8_t mac[6];                       /* zero: the device's */
  char gpu[16];                         /* "0000:3b:00.0", lower case; "": any */
  char pci_path[HARP_CONFIG_PATH_SIZE]; /* "": none */
  uint32_t speed_mbps;                  /* 0: the device's */
  uint32_t instances;
  struct harp_config_cores cores;
  uint32_t flows;
  struct harp_config_ports tcp_ports;
  struct harp_config_peers peers;
  char cc[16];
  uint32_t rto_min_us;
  uint32_t timeout_ms;
  uint32_t hugepages; /* MiB; 0: those that are free, or none */

  uint8_t source[HARP_CONFIG_KEYS]; /* enum harp_config_source */
};

struct harp_config_key_info {
  const char *name;
  const char *default_meaning;
  const char *allowed;
  const char *doc;
  uint64_t min, max; /* both 0: not a number */
  bool file_only;
};

/* Indexed by enum harp_config_key. */
extern const struct harp_config_key_info harp_config_key_info[HARP_CONFIG_KEYS];

/*
 * All of these return 0 or a negative errno and then one line in error
 * (HARP_CONFIG_ERROR_SIZE bytes); *config is then undefined.
 * -EINVAL: the text is wrong; -EFBIG: it is too long; else what the system said.
 */

/* From memory: file and defaults, no environment. name stands for the file in
 * the error line; "" if there is none. */
int harp_config_parse(const char *text, size_t length, const char *name, struct harp_config *config,
                      char *error);

/* From an open file: environment over file over default. fd stays open and its
 * offset is not used. */
int harp_config_read(int fd, const char *path, struct harp_config *config, char *error);

int harp_config_load(const char *path, struct harp_config *config, char *error);

/* The value in force, as a file would spell it; "" where the device, the kernel
 * or a measurement decides. Returns out. */
char *harp_config_format(const struct harp_config *config, enum harp_config_key key, char *out,
                         size_t size);

/* What is behind all fault:SPEC| wrappers of a device: "packet:eth0". Points
 * into device. */
const char *harp_config_innermost(const char *device);

/* Whether several processes may use the device at the same time. */
bool harp_config_shareable(const struct harp_config *config);

/* Whether peers lets this address (network order) connect. */
bool harp_config_peer_allowed(const struct harp_config *config, uint32_t address);

#endif
