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

enum { PAGE = 4096 };

static size_t paged(size_t bytes) { return (bytes + PAGE - 1) & ~(size_t)(PAGE - 1); }

size_t pass_stride(const struct pass *pass)
{
  if (pass->verify)
    return pass->step + OPERATION_SLACK;
  return paged(pass->size < pass->step ? pass->size : pass->step);
}

size_t pass_buffers(const struct pass *pass, size_t count)
{
  return count * (paged(pass->step) + OPERATION_SLACK);
}

void pass_divide(struct pass *passes, unsigned count, size_t size)
{
  size_t words = (size + 3) / 4, part = (words + count - 1) / count * 4;
  for (unsigned i = 0; i < count; i++) {
    size_t offset = i * part < size ? i * part : size;
    passes[i].offset = offset;
    passes[i].size = size - offset < part ? size - offset : part;
  }
}

void pass_inject(struct pass *pass, void *data, size_t size)
{
  if (!pass->inject || size == 0)
    return;
  ((uint8_t *)data)[size / 2] ^= 0x40;
  pass->inject = false;
}
