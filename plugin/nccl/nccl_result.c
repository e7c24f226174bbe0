/* SPDX-License-Identifier: Apache-2.0 */
/* Turns an errno into NCCL's result code. */
#include "plugin/nccl/nccl_result.h"

#include <errno.h>

/* NCCL before 2.13 calls version 4 or 5 and does not know ncclRemoteError. */
enum { FIRST_API_WITH_REMOTE_ERROR = 6 };

ncclResult_t nccl_result(int error, int api)
{
  switch (-error) {
  case 0: return ncclSuccess;
  case ECONNRESET:
  case ECONNREFUSED:
  case ECONNABORTED:
  case ETIMEDOUT:
  case EPIPE:
  case EHOSTUNREACH:
  case EHOSTDOWN:
  case ENETUNREACH:
  case ENOTCONN:
  case ESHUTDOWN: return api >= FIRST_API_WITH_REMOTE_ERROR ? ncclRemoteError : ncclSystemError;
  case EMSGSIZE: /* a send larger than the posted receive */ return ncclInvalidUsage;
  case EINVAL: return ncclInternalError;
  default: return ncclSystemError;
  }
}
