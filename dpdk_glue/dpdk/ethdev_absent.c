/* SPDX-License-Identifier: Apache-2.0 */
/* "dpdk:DEVICE" in a build without DPDK: open always fails. */
#include <errno.h>

#include "dpdk_glue/fail.h"
#include "dpdk_glue/port.h"

static int none_open(struct harp_port **port, const struct harp_port_config *config, char *error)
{
  return harp_port_fail(error, -EOPNOTSUPP,
                        "dpdk:%.150s: this HARP was built without DPDK: "
                        "install libdpdk-dev and build it again with -Ddpdk=enabled",
                        config->device);
}

const struct harp_port_ops harp_port_dpdk = {
    .scheme = "dpdk",
    .open = none_open,
};
