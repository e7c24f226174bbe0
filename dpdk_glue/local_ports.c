/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/local_ports.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

/* Draws a number below any. RFC 6056: an off-path attacker must not be able to guess the next
 * port. */
static unsigned draw(struct harp_local_ports *ports, unsigned any)
{
  uint32_t random;
  if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != sizeof(random)) {
    random = ports->draws++ * UINT32_C(2654435761); /* no entropy early at boot: weak is enough */
  }
  return random % any;
}

void harp_local_ports_init(struct harp_local_ports *ports, uint16_t first, uint16_t last)
{
  memset(ports, 0, sizeof(*ports));
  ports->strict = first != 0;
  ports->first = first ? first : HARP_LOCAL_FIRST;
  ports->last = first ? last : HARP_LOCAL_LAST;
  ports->taken[0] = 1; /* port 0 is not a port */
}

static uint64_t bit(unsigned local) { return UINT64_C(1) << (local % 64); }

static bool is_taken(const struct harp_local_ports *ports, uint16_t local)
{
  return ports->taken[local / 64] & bit(local);
}

/* place: index in the list of resting ports. */
static void stop_resting(struct harp_local_ports *ports, unsigned place)
{
  uint16_t local = ports->rest[place];
  ports->resting[local / 64] &= ~bit(local);
  ports->rest_count--;
  memmove(ports->rest + place, ports->rest + place + 1,
          (ports->rest_count - place) * sizeof(*ports->rest));
}

static void mark_taken(struct harp_local_ports *ports, uint16_t local)
{
  ports->taken[local / 64] |= bit(local);
  for (unsigned i = 0; (ports->resting[local / 64] & bit(local)) && i < ports->rest_count; i++) {
    if (ports->rest[i] == local) {
      stop_resting(ports, i);
    }
  }
}

/* A mask of every queues-th bit of a word, from bit 0. The ports of one queue have this pattern. */
static uint64_t every(unsigned queues)
{
  uint64_t bits = 0;
  for (unsigned i = 0; i < 64; i += queues) {
    bits |= bit(i);
  }
  return bits;
}

/* The ports of a word that are free and not resting, of all queues, one bit each. */
static uint64_t rested(const struct harp_local_ports *ports, unsigned word)
{
  uint64_t bits = ~(ports->taken[word] | ports->resting[word]);
  if (word == ports->first / 64) {
    bits &= UINT64_MAX << ports->first % 64;
  }
  if (word == ports->last / 64) {
    bits &= UINT64_MAX >> (63 - ports->last % 64);
  }
  return bits;
}

/* Finds the queue's free, rested port with `before` such ports in front of it. Returns false if
 * there are fewer; *count is then their number. Works on whole words, because one connect may
 * try many ports. */
static bool find_rested(const struct harp_local_ports *ports, unsigned queue, unsigned queues,
                        unsigned before, unsigned *count, uint16_t *local)
{
  const uint64_t spaced = every(queues);
  *count = 0;
  for (unsigned word = ports->first / 64; word <= ports->last / 64; word++) {
    unsigned skip = (queue + queues - word * 64 % queues) % queues;
    uint64_t bits = skip < 64 ? rested(ports, word) & spaced << skip : 0;
    unsigned here = (unsigned)__builtin_popcountll(bits);
    if (before - *count < here) {
      for (; before > *count; before--) {
        bits &= bits - 1;
      }
      *local = (uint16_t)(word * 64 + (unsigned)__builtin_ctzll(bits));
      return true;
    }
    *count += here;
  }
  return false;
}

/* Chooses a random port among those that have rested, or else the port that has rested longest. A
 * peer may still hold a port in TIME-WAIT until it has rested. */
static bool choose(struct harp_local_ports *ports, unsigned queue, unsigned queues, uint16_t *local)
{
  unsigned count;
  find_rested(ports, queue, queues, UINT32_MAX, &count, local);
  if (count) {
    return find_rested(ports, queue, queues, draw(ports, count), &count, local);
  }
  for (unsigned i = 0; i < ports->rest_count; i++) {
    *local = ports->rest[i];
    bool inside = *local >= ports->first && *local <= ports->last;
    if (inside && *local % queues == queue) {
      return true;
    }
  }
  return false;
}

static int take_wanted(struct harp_local_ports *ports, unsigned queue, unsigned queues,
                       uint16_t wanted)
{
  bool outside = wanted < ports->first || wanted > ports->last;
  if ((ports->strict && outside) || wanted % queues != queue) {
    return -EADDRNOTAVAIL;
  }
  return is_taken(ports, wanted) ? -EADDRINUSE : 0;
}

int harp_local_ports_take(struct harp_local_ports *ports, unsigned queue, unsigned queues,
                          uint16_t wanted, uint16_t *local)
{
  if (wanted) {
    int rc = take_wanted(ports, queue, queues, wanted);
    if (rc < 0) {
      return rc;
    }
    mark_taken(ports, wanted);
    *local = wanted;
    return 0;
  }
  if (!choose(ports, queue, queues, local)) {
    return -EADDRINUSE;
  }
  mark_taken(ports, *local);
  return 0;
}

void harp_local_ports_add(struct harp_local_ports *ports, uint16_t local)
{
  if (local) {
    ports->taken[local / 64] &= ~bit(local);
  }
}

void harp_local_ports_give(struct harp_local_ports *ports, uint16_t local)
{
  if (!local || !is_taken(ports, local)) {
    return;
  }
  harp_local_ports_add(ports, local);
  if (ports->rest_count == HARP_LOCAL_REST) {
    stop_resting(ports, 0);
  }
  ports->rest[ports->rest_count++] = local;
  ports->resting[local / 64] |= bit(local);
}

void harp_local_ports_take_all(struct harp_local_ports *ports)
{
  memset(ports->taken, 0xff, sizeof(ports->taken));
}
