/* SPDX-License-Identifier: Apache-2.0 */
/* ncclNetPlugin_v9: NCCL 2.24 and later. */
#define API 9
#include "plugin/nccl/shim.h"
