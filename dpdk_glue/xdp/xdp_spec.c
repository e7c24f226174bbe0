/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/xdp/xdp_spec.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "dpdk_glue/fail.h"

static const char *const modes[] = {
    [XDP_MODE_AUTO] = "auto", [XDP_MODE_ZEROCOPY] = "zerocopy", [XDP_MODE_COPY] = "copy"};

static bool read_mode(const char *text, enum xdp_mode *mode)
{
  for (unsigned i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
    if (strcmp(text, modes[i]) == 0) {
      *mode = i;
      return true;
    }
  }
  return false;
}

int harp_xdp_spec_read(struct xdp_spec *spec, const char *device, char *error)
{
  size_t length = strcspn(device, ",");
  const char *option = device[length] ? device + length + 1 : NULL;
  *spec = (struct xdp_spec){.mode = XDP_MODE_AUTO};
  if (length == 0 || length >= sizeof(spec->interface)) {
    return harp_port_fail(
        error, -EINVAL, "xdp:%.100s: no interface; name one, as in xdp:eth0 or xdp:eth0,mode=copy",
        device);
  }
  memcpy(spec->interface, device, length);
  if (option && (strncmp(option, "mode=", 5) != 0 || !read_mode(option + 5, &spec->mode))) {
    return harp_port_fail(error, -EINVAL,
                          "xdp:%.100s: unknown option; the only one is mode=auto, mode=zerocopy or "
                          "mode=copy",
                          device);
  }
  return 0;
}
