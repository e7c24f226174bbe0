/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/bench/operation.h"

#include <stdio.h>
#include <string.h>

static const struct operation *const operations[] = {
    &operation_all_reduce,     &operation_reduce_scatter, &operation_all_gather,
    &operation_broadcast,      &operation_all_to_all,     &operation_sendrecv,
    &operation_sendrecv_bidir, &operation_pingpong,       &operation_mixed,
};

const struct operation *operation_find(const char *name)
{
  for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++) {
    if (strcmp(operations[i]->name, name) == 0) {
      return operations[i];
    }
  }
  return NULL;
}

const char *operation_names(void)
{
  static char names[256];
  size_t length = 0;
  for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++) {
    length += (size_t)snprintf(names + length, sizeof(names) - length, "%s%s", i ? ", " : "",
                               operations[i]->name);
  }
  return names;
}

size_t operation_unit(const struct datatype *datatype)
{
  return datatype->size < sizeof(uint32_t) ? sizeof(uint32_t) : datatype->size;
}

size_t operation_fit(const struct operation *operation, const struct datatype *datatype, int ranks,
                     size_t size)
{
  return operation->blocks ? size - size % (operation_unit(datatype) * (size_t)ranks) : size;
}

bool operation_on_every_rank(int rank, int ranks) { return true; }

double operation_factor_one(int ranks) { return 1; }

double operation_factor_of_others(int ranks) { return 1.0 * (ranks - 1) / ranks; }

double operation_bytes_to_others(int ranks, size_t size)
{
  return 1.0 * (ranks - 1) * (double)size;
}

enum { PAGE = 4096 };

static size_t paged(size_t bytes) { return (bytes + PAGE - 1) & ~(size_t)(PAGE - 1); }

size_t pass_stride(const struct pass *pass)
{
  if (pass->verify) {
    return pass->step + OPERATION_SLACK;
  }
  return paged(pass->size < pass->step ? pass->size : pass->step);
}

size_t pass_buffers(const struct pass *pass, size_t count)
{
  return count * (paged(pass->step) + OPERATION_SLACK);
}

void pass_divide(struct pass *passes, unsigned count, size_t size)
{
  bool blocks = passes->operation->blocks, pairwise = passes->operation->pairwise;
  size_t whole = blocks ? size / (size_t)passes->ranks : size;
  size_t parts = pairwise ? 1 : count, longs = (whole + 7) / 8;
  size_t part = (longs + parts - 1) / parts * 8;
  for (unsigned i = 0; i < count; i++) {
    size_t offset = pairwise ? 0 : i * part < whole ? i * part : whole;
    passes[i].block = blocks ? whole : 0;
    passes[i].offset = offset;
    passes[i].size = whole - offset < part ? whole - offset : part;
  }
}

void pass_set_totals(struct pass *pass)
{
  uint64_t warm = pass->warmup * pass->messages;
  uint64_t all = warm + pass->iterations * pass->messages;
  if (pass->operation->sends(pass->rank, pass->ranks)) {
    pass->pump.send.total = all;
    pass->pump.warm_send = warm;
  }
  if (pass->operation->receives(pass->rank, pass->ranks)) {
    pass->pump.receive.total = all;
    pass->pump.warm_receive = warm;
  }
}

uint64_t pass_done(const struct pass *pass)
{
  const struct pump_side *send = &pass->pump.send, *receive = &pass->pump.receive;
  if (!send->total || !receive->total) {
    return send->total ? send->done : receive->done;
  }
  return send->done < receive->done ? send->done : receive->done;
}

bool pass_may_begin(const struct pass *pass, uint64_t iteration)
{
  for (unsigned i = 0; i < pass->channel_count; i++) {
    const struct pass *channel = &pass->channels[i];
    if (pass_done(channel) < iteration * channel->messages) {
      return false;
    }
  }
  return true;
}

void pass_inject(struct pass *pass, void *data, size_t size)
{
  if (!pass->inject || size == 0) {
    return;
  }
  ((uint8_t *)data)[size / 2] ^= 0x40;
  pass->inject = false;
}
