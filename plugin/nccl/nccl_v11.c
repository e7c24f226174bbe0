/* SPDX-License-Identifier: Apache-2.0 */
/* ncclNetPlugin_v11: NCCL 2.28 and later. */
#define API 11
#include "plugin/nccl/shim.h"
