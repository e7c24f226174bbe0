/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/fail.h"

#include <stdarg.h>
#include <stdio.h>

#include "dpdk_glue/port.h"

int harp_port_fail(char *error, int code, const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error, HARP_PORT_ERROR_SIZE, format, arguments);
  va_end(arguments);
  return code;
}
