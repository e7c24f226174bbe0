/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/stack/siphash.h"

static uint64_t rotate(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

static void sip_round(uint64_t v[4])
{
  v[0] += v[1];
  v[1] = rotate(v[1], 13) ^ v[0];
  v[0] = rotate(v[0], 32);
  v[2] += v[3];
  v[3] = rotate(v[3], 16) ^ v[2];
  v[0] += v[3];
  v[3] = rotate(v[3], 21) ^ v[0];
  v[2] += v[1];
  v[1] = rotate(v[1], 17) ^ v[2];
  v[2] = rotate(v[2], 32);
}

static void sip_absorb(uint64_t v[4], uint64_t word)
{
  v[3] ^= word;
  sip_round(v);
  sip_round(v);
  v[0] ^= word;
}

uint64_t harp_siphash(const uint64_t key[2], uint64_t first, uint64_t second)
{
  uint64_t v[4] = {key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d,
                   key[0] ^ 0x6c7967656e657261, key[1] ^ 0x7465646279746573};
  sip_absorb(v, first);
  sip_absorb(v, second);
  sip_absorb(v, (uint64_t)16 << 56); /* the length byte ends the message */
  v[2] ^= 0xff;
  for (int i = 0; i < 4; i++) {
    sip_round(v);
  }
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}
