/* SPDX-License-Identifier: Apache-2.0 */
/* ncclNetPlugin_v4: NCCL 2.8 to 2.18. */
#define API 4
#include "plugin/nccl/shim.h"
