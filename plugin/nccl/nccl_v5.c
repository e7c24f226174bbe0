/* SPDX-License-Identifier: Apache-2.0 */
/* ncclNetPlugin_v5: NCCL 2.12 to 2.25. */
#define API 5
#include "plugin/nccl/shim.h"
