/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the port implementation by the scheme of the device name.
 */
#include "dpdk_glue/port.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "dpdk_glue/fail.h"

static const struct harp_port_ops *const schemes[] = {
    &harp_port_packet, &harp_port_xdp, &harp_port_dpdk, &harp_port_wire, &harp_port_fault,
};

enum { SCHEMES = sizeof(schemes) / sizeof(schemes[0]) };

static const struct harp_port_ops *find_scheme(const char *device, size_t length)
{
  for (int i = 0; i < SCHEMES; i++) {
    if (strlen(schemes[i]->scheme) == length && strncmp(schemes[i]->scheme, device, length) == 0) {
      return schemes[i];
    }
  }
  return NULL;
}

static int unknown_scheme(const char *device, char *error)
{
  char names[128] = "";
  size_t used = 0;
  for (int i = 0; i < SCHEMES && used < sizeof(names); i++) {
    used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s:", i ? ", " : "",
                             schemes[i]->scheme);
  }
  return harp_port_fail(error, -EPROTONOSUPPORT,
                        "device \"%.200s\": unknown kind of device; begin it with one of %s as in "
                        "packet:eth0",
                        device, names);
}

/* A job without privileges may expect that the agent opens these, too. */
static void explain_agent(const char *device, char *error)
{
  size_t used = strlen(error);
  snprintf(error + used, HARP_PORT_ERROR_SIZE - used,
           "; the agent of this node opens no dpdk devices: set device = packet:IFACE or "
           "xdp:IFACE, or give the job what %.64s needs",
           device);
}

int harp_port_open(struct harp_port **port, const char *device,
                   const struct harp_port_config *config, char *error)
{
  *port = NULL;
  error[0] = '\0';
  const char *colon = strchr(device, ':');
  const struct harp_port_ops *ops = colon ? find_scheme(device, (size_t)(colon - device)) : NULL;
  if (!ops) {
    return unknown_scheme(device, error);
  }
  struct harp_port_config rest = *config;
  rest.device = colon + 1;
  int rc = ops->open(port, &rest, error);
  if (rc < 0 && config->agent && ops == &harp_port_dpdk) {
    explain_agent(device, error);
  }
  return rc;
}

int harp_port_start(struct harp_port *port, char *error)
{
  return port->ops->start ? port->ops->start(port, error) : 0;
}

void harp_port_close(struct harp_port *port)
{
  if (port) {
    port->ops->close(port);
  }
}
