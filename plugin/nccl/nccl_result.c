/* SPDX-License-Identifier: Apache-2.0 */
/* The one place that turns an errno into NCCL's words. */
#include "plugin/nccl/nccl_result.h"

#include <errno.h>

/* Callers of version 4 and 5 (NCCL before 2.13) do not know ncclRemoteError. */
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
  case EMSGSIZE: /* a send larger than the receive that it met */ return ncclInvalidUsage;
  case EINVAL: return ncclInternalError;
  default: return ncclSystemError;
  }
}
