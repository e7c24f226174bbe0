/* SPDX-License-Identifier: Apache-2.0 */
/* ncclNetPlugin_v7: NCCL 2.19 and later. */
#define API 7
#include "plugin/nccl/shim.h"
