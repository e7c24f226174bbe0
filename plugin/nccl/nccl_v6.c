/* SPDX-License-Identifier: Apache-2.0 */
/* ncclNetPlugin_v6: NCCL 2.13 and later. */
#define API 6
#include "plugin/nccl/shim.h"
