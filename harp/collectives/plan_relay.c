/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/plan_relay.h"

/* Bytes of a slice at most. Each rank of a chain passes on whole slices, so the last one waits for
 * as many of them as there are ranks. */
enum { CHAIN_SLICE = 131072 };

static int rank_of(const struct relay *relay, int number)
{
  int member = (relay->root + number) % relay->size;
  return relay->members ? relay->members[member] : member;
}

static int32_t relay_tree(const struct relay *relay, const struct harp_view *view, int32_t after)
{
  int bit = 1;
  for (; bit < relay->size; bit <<= 1) {
    if (relay->number & bit) {
      after = add_receive(relay->schedule, rank_of(relay, relay->number - bit), view->data,
                          view->bytes, NO_STEP);
      break;
    }
  }
  for (bit >>= 1; bit; bit >>= 1) {
    if (relay->number + bit < relay->size) {
      add_send(relay->schedule, rank_of(relay, relay->number + bit), view->data, view->bytes,
               after);
    }
  }
  return after;
}

static int32_t relay_chain(const struct relay *relay, const struct harp_view *view, int32_t after)
{
  size_t slice = plan_slice(view->bytes, CHAIN_SLICE);
  for (size_t at = 0; at < view->bytes; at += slice) {
    size_t bytes = view->bytes - at < slice ? view->bytes - at : slice;
    uint8_t *data = (uint8_t *)view->data + at;
    if (relay->number > 0) {
      after = add_receive(relay->schedule, rank_of(relay, relay->number - 1), data, bytes, NO_STEP);
    }
    if (relay->number + 1 < relay->size) {
      add_send(relay->schedule, rank_of(relay, relay->number + 1), data, bytes, after);
    }
  }
  return after;
}

int32_t relay_add(const struct relay *relay, const struct harp_view *view, int32_t after)
{
  return view->bytes <= LINK_SHORT ? relay_tree(relay, view, after)
                                   : relay_chain(relay, view, after);
}
