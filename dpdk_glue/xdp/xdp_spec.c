/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/xdp/xdp_spec.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "dpdk_glue/fail.h"

static const char *const modes[] = {
    [XDP_MODE_AUTO] = "auto", [XDP_MODE_ZEROCOPY] = "zerocopy", [XDP_MODE_COPY] = "copy", NULL};
static const char *const senders[] = {[XDP_SENDER_AUTO] = "auto", [XDP_SENDER_XDP] = "xdp", NULL};

/* Returns the index of the word of `length` bytes among names, or -1. */
static int find(const char *const *names, const char *word, size_t length)
{
  for (int i = 0; names[i]; i++) {
    if (strlen(names[i]) == length && memcmp(names[i], word, length) == 0) {
      return i;
    }
  }
  return -1;
}

/* Reads an option of `length` bytes, such as mode=copy. */
static bool read_option(struct xdp_spec *spec, const char *option, size_t length)
{
  enum { NAME = 5 /* bytes of "mode=" and of "send=" */ };
  bool is_mode = length > NAME && memcmp(option, "mode=", NAME) == 0;
  bool is_sender = length > NAME && memcmp(option, "send=", NAME) == 0;
  if (!is_mode && !is_sender) {
    return false;
  }
  int value = find(is_mode ? modes : senders, option + NAME, length - NAME);
  if (is_mode) {
    spec->mode = (enum xdp_mode)value;
  } else {
    spec->sender = (enum xdp_sender)value;
  }
  return value >= 0;
}

int harp_xdp_spec_read(struct xdp_spec *spec, const char *device, char *error)
{
  size_t length = strcspn(device, ",");
  *spec = (struct xdp_spec){.mode = XDP_MODE_AUTO};
  if (length == 0 || length >= sizeof(spec->interface)) {
    return harp_port_fail(
        error, -EINVAL, "xdp:%.100s: no interface; name one, as in xdp:eth0 or xdp:eth0,mode=copy",
        device);
  }
  memcpy(spec->interface, device, length);
  for (const char *option = device + length; *option;) {
    option++;
    length = strcspn(option, ",");
    if (!read_option(spec, option, length)) {
      return harp_port_fail(error, -EINVAL,
                            "xdp:%.100s: unknown option; the options are mode=auto, mode=zerocopy "
                            "or mode=copy, and send=auto or send=xdp",
                            device);
    }
    option += length;
  }
  return 0;
}
