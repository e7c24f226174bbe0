/* SPDX-License-Identifier: Apache-2.0 */
/* ncclNetPlugin_v8: NCCL 2.20 and later. */
#define API 8
#include "plugin/nccl/shim.h"
