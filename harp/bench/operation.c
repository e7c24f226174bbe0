/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/bench/operation.h"

#include <string.h>

static const struct operation *const operations[] = {
    &operation_all_reduce, &operation_sendrecv, &operation_sendrecv_bidir,
    &operation_pingpong,   &operation_mixed,
};

const struct operation *operation_find(const char *name)
{
  for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++) {
    if (strcmp(operations[i]->name, name) == 0)
      return operations[i];
  }
  return NULL;
}

void pass_inject(struct pass *pass, void *data, size_t size)
{
  if (!pass->inject || size == 0)
    return;
  ((uint8_t *)data)[size / 2] ^= 0x40;
  pass->inject = false;
}
