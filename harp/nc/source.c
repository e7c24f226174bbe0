/* SPDX-License-Identifier: Apache-2.0 */
/*
 * There are three sources of the configuration: options, a file, or, without either, the file that
 * a job on this host would claim. All give one configuration with a single instance.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "harp/nc/nc.h"

/* Turns the options into lines of a file, so that options and files have the same rules and
 * errors. */
static int from_options(struct nc_source *source, const struct nc_options *options)
{
  const struct {
    const char *key, *value;
  } given[] = {
      {"device", options->device},
      {"address", options->address},
      {"gateway", options->gateway},
      {"mtu", options->mtu},
  };
  char text[1024], error[HARP_CONFIG_ERROR_SIZE];
  size_t used = 0;
  if (!options->address && !harp_config_is_on_interface(options->device)) {
    nc_fail("--device %s: only packet and xdp devices share the kernel's address: give --address "
            "A.B.C.D/N, too",
            options->device);
    return NC_USAGE;
  }
  for (size_t i = 0; i < sizeof given / sizeof given[0]; i++) {
    if (given[i].value && used < sizeof text) {
      used += (size_t)snprintf(text + used, sizeof text - used, "%s = %s\n", given[i].key,
                               given[i].value);
    }
  }
  if (used >= sizeof text) {
    nc_fail("the values of --device, --address, --gateway and --mtu are too long");
    return NC_USAGE;
  }
  if (harp_config_parse(text, used, "options", &source->config, error) != 0) {
    nc_fail("%s", error);
    return NC_USAGE;
  }
  return -1;
}

/* Claims the file like a process of a job. */
static int lock(struct nc_source *source)
{
  bool shared = harp_config_shareable(&source->config);
  if (flock(source->claim.fd, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0) {
    source->claim.shared = shared;
    return -1;
  }
  if (errno == EWOULDBLOCK) {
    return nc_fail("%s: another process has claimed it (harp stat shows which); end it, or use "
                   "another file",
                   source->config.path);
  }
  return nc_fail("%s: cannot be locked: %s; put it on a file system that supports flock",
                 source->config.path, strerror(errno));
}

static int from_file(struct nc_source *source, const char *path)
{
  char error[HARP_CONFIG_ERROR_SIZE];
  source->claim.fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (source->claim.fd < 0) {
    return nc_fail("%s: cannot be opened: %s; check the path and its permissions", path,
                   strerror(errno));
  }
  if (harp_config_read(source->claim.fd, path, &source->config, error) != 0) {
    return nc_fail("%s", error);
  }
  return lock(source);
}

static int from_job(struct nc_source *source)
{
  char error[HARP_CLAIM_ERROR_SIZE];
  if (harp_claim(&source->claim, error) != 0) {
    return nc_fail("%s (or name a device: --device packet:IFACE)", error);
  }
  source->config = source->claim.config;
  return -1;
}

/* One thread polls one instance. On its own address HARP must answer for every port in
 * tcp_ports. A port given by number is the only one in use, unless the file sets tcp_ports. */
static void narrow(struct harp_config *config, uint16_t local_port)
{
  config->instances = 1;
  config->cores.count = 0;
  if (local_port && !config->address.kernel &&
      config->source[HARP_KEY_tcp_ports] == HARP_FROM_DEFAULT) {
    config->tcp_ports = (struct harp_config_ports){local_port, local_port};
  }
}

int nc_source_find(struct nc_source *source, const struct nc_options *options)
{
  int status;
  source->claim.fd = -1;
  if (options->device) {
    status = from_options(source, options);
  } else if (options->conf) {
    status = from_file(source, options->conf);
  } else {
    status = from_job(source);
  }
  if (status >= 0) {
    nc_source_release(source);
    return status;
  }
  narrow(&source->config, options->local_port);
  return -1;
}

void nc_source_release(struct nc_source *source) { harp_claim_release(&source->claim); }
