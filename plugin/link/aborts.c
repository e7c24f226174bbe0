/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/link/aborts.h"

#define SECOND_NS UINT64_C(1000000000)

static _Atomic(uint64_t) *place_of(struct aborts *aborts, uint32_t peer)
{
  /* Multiplication spreads the addresses of one network, which differ in their last bytes only. */
  uint32_t mixed = peer * UINT32_C(0x9e3779b1);
  return &aborts->resets[(mixed >> 24) % ABORT_PEERS];
}

void aborts_begin(struct aborts *aborts, uint64_t now) { atomic_store(&aborts->ours, now); }

bool aborts_reset_is_news(struct aborts *aborts, uint32_t peer, uint64_t now)
{
  uint64_t ours = atomic_load(&aborts->ours);
  uint32_t second = (uint32_t)(now / SECOND_NS);
  uint64_t before = atomic_exchange(place_of(aborts, peer), (uint64_t)peer << 32 | second);
  bool again = (uint32_t)(before >> 32) == peer && second - (uint32_t)before <= ABORT_S;
  /* ours may be later than now, since another thread may set it at this moment. */
  bool by_us = ours && ours + ABORT_S * SECOND_NS >= now;
  return !again && !by_us;
}
