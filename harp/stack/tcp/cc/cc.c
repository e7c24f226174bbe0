/* SPDX-License-Identifier: Apache-2.0 */
/* The congestion controls by name. */
#include "harp/stack/tcp/cc/cc.h"

#include <string.h>

const struct harp_cc_ops *harp_cc_find(const char *name)
{
  if (!name || strcmp(name, harp_cc_cubic.name) == 0) {
    return &harp_cc_cubic;
  }
  return strcmp(name, harp_cc_reno.name) == 0 ? &harp_cc_reno : NULL;
}
