/* SPDX-License-Identifier: Apache-2.0 */
/* A world on Ethernet with a known MAC address of the peer. */
#ifndef HARP_TESTS_FUZZ_ETHER_H
#define HARP_TESTS_FUZZ_ETHER_H

#include "tests/fuzz/world.h"

struct ether_arp_words {
  uint16_t operation;
  uint8_t sender_mac[6], target_mac[6];
  uint32_t sender, target; /* network order */
};

extern const uint8_t ether_own[6], ether_peer[6];

/* Both return the number of written bytes. */
uint32_t ether_header(const uint8_t *to, const uint8_t *from, uint16_t type, uint8_t *out);
uint32_t ether_arp(const struct ether_arp_words *arp, uint8_t *out);

/* Creates a world in the arena. Connection 0 is established. */
struct world *ether_world(void);

#endif
