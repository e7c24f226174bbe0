/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/fault/fault_hold.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

void harp_fault_references_init(struct fault_loans *loans)
{
  pthread_mutex_init(&loans->lock, NULL);
  loans->first = NULL;
}

void harp_fault_references_clear(struct fault_loans *loans)
{
  while (loans->first) {
    struct fault_loan *next = loans->first->next;
    free(loans->first);
    loans->first = next;
  }
  pthread_mutex_destroy(&loans->lock);
}

int harp_fault_track_reference(struct fault_loans *loans, uintptr_t start, uintptr_t end)
{
  struct fault_loan *loan = malloc(sizeof(*loan));
  if (!loan) {
    return -ENOMEM;
  }
  pthread_mutex_lock(&loans->lock);
  *loan = (struct fault_loan){loans->first, start, end};
  loans->first = loan;
  pthread_mutex_unlock(&loans->lock);
  return 0;
}

void harp_fault_copy_revoked(struct fault_loans *loans, uintptr_t start, uintptr_t end)
{
  pthread_mutex_lock(&loans->lock);
  struct fault_loan **link = &loans->first;
  while (*link && ((*link)->start != start || (*link)->end != end)) {
    link = &(*link)->next;
  }
  struct fault_loan *loan = *link;
  if (loan) {
    *link = loan->next;
  }
  pthread_mutex_unlock(&loans->lock);
  free(loan);
}

static bool is_referenced(struct fault_loans *loans, const struct iovec *piece)
{
  uintptr_t start = (uintptr_t)piece->iov_base, end = start + piece->iov_len;
  pthread_mutex_lock(&loans->lock);
  const struct fault_loan *loan = loans->first;
  while (loan && (start < loan->start || end > loan->end)) {
    loan = loan->next;
  }
  pthread_mutex_unlock(&loans->lock);
  return loan != NULL;
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

void harp_fault_keep(struct fault_held *held, struct fault_loans *loans,
                     const struct harp_tx_frame *frame, uint64_t due_ns)
{
  for (unsigned i = 1; i < frame->iov_count; i++) {
    const struct iovec *piece = &frame->iov[i];
    if (!is_referenced(loans, piece)) {
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
