/* SPDX-License-Identifier: Apache-2.0 */
/* ncclNetPlugin_v10: NCCL 2.26 and later. */
#define API 10
#include "plugin/nccl/shim.h"
