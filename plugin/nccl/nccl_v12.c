/* SPDX-License-Identifier: Apache-2.0 */
/* ncclNetPlugin_v12: NCCL 2.30 and later. */
#define API 12
#include "plugin/nccl/shim.h"
