/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/fault/fault_hold.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

void harp_fault_mappings_init(struct fault_mappings *mappings)
{
  pthread_mutex_init(&mappings->lock, NULL);
  mappings->first = NULL;
}

void harp_fault_mappings_clear(struct fault_mappings *mappings)
{
  while (mappings->first) {
    struct fault_mapping *next = mappings->first->next;
    free(mappings->first);
    mappings->first = next;
  }
  pthread_mutex_destroy(&mappings->lock);
}

int harp_fault_mapping_add(struct fault_mappings *mappings, uintptr_t start, uintptr_t end)
{
  struct fault_mapping *mapping = malloc(sizeof(*mapping));
  if (!mapping) {
    return -ENOMEM;
  }
  pthread_mutex_lock(&mappings->lock);
  *mapping = (struct fault_mapping){mappings->first, start, end};
  mappings->first = mapping;
  pthread_mutex_unlock(&mappings->lock);
  return 0;
}

void harp_fault_mapping_remove(struct fault_mappings *mappings, uintptr_t start, uintptr_t end)
{
  pthread_mutex_lock(&mappings->lock);
  struct fault_mapping **link = &mappings->first;
  while (*link && ((*link)->start != start || (*link)->end != end)) {
    link = &(*link)->next;
  }
  struct fault_mapping *mapping = *link;
  if (mapping) {
    *link = mapping->next;
  }
  pthread_mutex_unlock(&mappings->lock);
  free(mapping);
}

static bool is_referenced(struct fault_mappings *mappings, const struct iovec *piece)
{
  uintptr_t start = (uintptr_t)piece->iov_base, end = start + piece->iov_len;
  pthread_mutex_lock(&mappings->lock);
  const struct fault_mapping *mapping = mappings->first;
  while (mapping && (start < mapping->start || end > mapping->end)) {
    mapping = mapping->next;
  }
  pthread_mutex_unlock(&mappings->lock);
  return mapping != NULL;
}

static void let_go(struct fault_held *held)
{
  const struct fault_reference *oldest = &held->references[held->first];
  for (size_t i = 0; i < oldest->length; i++) {
    held->sum = (uint8_t)(held->sum + oldest->data[i]);
  }
  held->first = (held->first + 1) % FAULT_HELD;
  held->count--;
}

void harp_fault_keep(struct fault_held *held, struct fault_mappings *mappings,
                     const struct harp_tx_frame *frame, uint64_t due_ns)
{
  for (unsigned i = 1; i < frame->iov_count; i++) {
    const struct iovec *piece = &frame->iov[i];
    if (!is_referenced(mappings, piece)) {
      continue;
    }
    if (held->count == FAULT_HELD) {
      let_go(held);
    }
    held->references[(held->first + held->count++) % FAULT_HELD] =
        (struct fault_reference){piece->iov_base, piece->iov_len, due_ns};
  }
}

void harp_fault_let_go(struct fault_held *held, uint64_t now_ns)
{
  while (held->count && held->references[held->first].due_ns <= now_ns) {
    let_go(held);
  }
}

uint64_t harp_fault_held_until(const struct fault_held *held)
{
  return held->count ? held->references[(held->first + held->count - 1) % FAULT_HELD].due_ns : 0;
}
