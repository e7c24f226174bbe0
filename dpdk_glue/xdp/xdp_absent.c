/* SPDX-License-Identifier: Apache-2.0 */
/* "xdp:IFACE" in a build without clang: open always fails. */
#include <errno.h>

#include "dpdk_glue/fail.h"
#include "dpdk_glue/port.h"

static int none_open(struct harp_port **port, const struct harp_port_config *config, char *error)
{
  return harp_port_fail(error, -EOPNOTSUPP,
                        "xdp:%.150s: this HARP was built without XDP: install clang and build it "
                        "again with -Dxdp=enabled",
                        config->device);
}

const struct harp_port_ops harp_port_xdp = {
    .scheme = "xdp",
    .open = none_open,
};
