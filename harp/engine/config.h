/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The content of a ztcp*.conf as typed fields. One file describes one NIC, in lines "key = value";
 * "#" starts a comment. HARP_<KEY> in the environment overrides the file, and the file overrides
 * the default. Some keys are read from the file only (config_keys.def).
 *
 * The text is untrusted. Any bytes result in a configuration, or in an error line that names the
 * file, the line, the key and the allowed values.
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
  HARP_PCI_ID_SIZE = 16, /* of "0000:3b:00.0", with its end */
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
  bool kernel;      /* share the interface's address; the other fields are zero */
  uint32_t address; /* network order */
  uint8_t prefix;   /* bits, 1-32 */
};

struct harp_config_cores {
  unsigned count; /* 0: workers are not pinned */
  uint16_t cpu[HARP_CONFIG_CORES_MAX];
};

struct harp_config_ports {
  uint16_t first, last; /* 0, 0: ports that the kernel assigns */
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
  char path[4096]; /* of the file; "": text from memory without a name */

  char device[HARP_CONFIG_DEVICE_SIZE];
  struct harp_config_address address;
  uint32_t gateway;                     /* network order; 0: the device's */
  uint16_t mtu;                         /* bytes; 0: the device's */
  uint8_t mac[6];                       /* zero: the device's */
  char gpu[HARP_PCI_ID_SIZE];           /* "0000:3b:00.0", lower case; "": any */
  char pci_path[HARP_CONFIG_PATH_SIZE]; /* "": none */
  uint32_t speed_mbps;                  /* 0: the device's */
  uint32_t instances;                   /* 0: harp_instances_choose decides */
  struct harp_config_cores cores;
  uint32_t flows; /* 0: one for each instance */
  struct harp_config_ports tcp_ports;
  struct harp_config_peers peers;
  char cc[16];
  char stripe[16];  /* "none" or "all" */
  char threads[16]; /* "auto", "caller" or "worker" */
  uint32_t rto_min_us;
  uint32_t timeout_ms;
  uint32_t hugepages; /* MiB; 0: free hugepages, if there are any */

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
 * harp_config_parse, harp_config_read and harp_config_load return 0, or a negative errno and one
 * line in error (HARP_CONFIG_ERROR_SIZE bytes). *config is undefined after an error.
 * -EINVAL: the text is invalid; -EFBIG: it is too long; else the errno of a system call.
 */

/* Parses text in memory, with defaults but without the environment. name: the file's name in error
 * lines; "": none. */
int harp_config_parse(const char *text, size_t length, const char *name, struct harp_config *config,
                      char *error);

/* Reads an open file, with defaults and the environment. fd stays open and keeps its offset. */
int harp_config_read(int fd, const char *path, struct harp_config *config, char *error);

/* Opens and reads the file, as harp_config_read. */
int harp_config_load(const char *path, struct harp_config *config, char *error);

/* Writes the value in force as a file would contain it; "": the device or the kernel decides.
 * Returns out. */
char *harp_config_format(const struct harp_config *config, enum harp_config_key key, char *out,
                         size_t size);

/* The device inside all fault:SPEC| wrappers, such as "packet:eth0". Points into device. */
const char *harp_config_innermost(const char *device);

/* Whether the device inside all wrappers has this scheme, such as "packet". */
bool harp_config_has_scheme(const char *device, const char *scheme);

/* Whether the device inside all wrappers is on an interface of the kernel: packet or xdp. */
bool harp_config_is_on_interface(const char *device);

/* Writes the interface of a device that the kernel keeps: "eth0" of "packet:eth0" and of
 * "xdp:eth0,mode=copy". name: IF_NAMESIZE bytes. false: the device is none, or the name is too
 * long. */
bool harp_config_interface(const char *device, char *name);

/* Whether several processes may use the device at once. */
bool harp_config_shareable(const struct harp_config *config);

/* The mask of a prefix of 0 to 32 bits, network order. */
uint32_t harp_netmask(unsigned prefix);

/* Writes an error line of HARP_CONFIG_ERROR_SIZE bytes at most. Returns code. */
__attribute__((format(printf, 3, 4))) int harp_config_fail(char *error, int code,
                                                           const char *format, ...);

/* Whether the key `peers` allows this address (network order) to connect. */
bool harp_config_peer_allowed(const struct harp_config *config, uint32_t address);

#endif
