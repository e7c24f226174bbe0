/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HARP_PLUGIN_NCCL_RESULT_H
#define HARP_PLUGIN_NCCL_RESULT_H

#include "plugin/nccl/nccl_types.h"

/* NCCL's code for a result of plugin/net.h (0 or a negative errno), in the given version of the
 * interface. */
ncclResult_t nccl_result(int error, int api);

#endif
