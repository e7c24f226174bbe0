/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HARP_PLUGIN_NCCL_RESULT_H
#define HARP_PLUGIN_NCCL_RESULT_H

#include "plugin/nccl/nccl_types.h"

/* What NCCL is told for an outcome of plugin/net.h (0 or a negative errno),
 * by the version of the interface it called through. */
ncclResult_t nccl_result(int error, int api);

#endif
