/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends any bytes, in any two pieces, to a host with a live connection. Most frames get correct
 * checksums, because otherwise the stack would drop them early. An input is a list of: choice,
 * split (2 bytes), length (2), the bytes.
 */
#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "tests/fuzz/ether.h"
#include "tests/fuzz/frames.h"

enum { FRAMES_MAX = 16, AS_IT_IS = 1, ADDRESSED = 2, PAUSE = 4, NOT_IN_ORDER = 8 };

static struct world *world;

static void one(struct fuzz_input *input)
{
  uint8_t frame[WORLD_FRAME];
  uint8_t choice = fuzz_u8(input);
  uint32_t split = fuzz_u16(input), length = fuzz_u16(input);
  length = HARP_MIN(HARP_MIN(length, (uint32_t)WORLD_FRAME), (uint32_t)input->left);
  memcpy(frame, input->data, length);
  input->data += length;
  input->left -= length;
  if (choice & ADDRESSED && length >= ETH_HEADER + IP_HEADER) {
    ether_header(ether_own, ether_peer, ETH_TYPE_IPV4, frame);
    store_address(frame + ETH_HEADER + IP_DST, WORLD_ADDRESS);
    store_address(frame + ETH_HEADER + IP_SRC, WORLD_PEER);
  }
  if (choice & ADDRESSED && !(choice & NOT_IN_ORDER) &&
      length >= ETH_HEADER + IP_HEADER + TCP_HEADER) {
    const struct harp_tcp *tcp = world_find(world, &world->connections[0]);
    uint8_t *header = frame + ETH_HEADER + IP_HEADER;
    store_be16(header + TCP_SOURCE, WORLD_PEER_PORT);
    store_be16(header + TCP_DEST, WORLD_LISTENER);
    store_be32(header + TCP_SEQUENCE, tcp ? tcp->rcv.nxt : 0);
    store_be32(header + TCP_ACKNOWLEDGEMENT, tcp ? tcp->snd.nxt : 0);
  }
  if (!(choice & AS_IT_IS) && length > ETH_HEADER) {
    frame_mend(frame + ETH_HEADER, length - ETH_HEADER);
  }
  world_receive(world, frame, length, choice & 16 ? length : split);
  if (choice & PAUSE) {
    world_advance(world, world->now + NS_PER_MS * split);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  if (!world) {
    arena_enter();
    world = ether_world();
    arena_keep();
  }
  struct fuzz_input input = {data, size};
  arena_restore();
  arena_enter();
  for (int i = 0; i < FRAMES_MAX && input.left > 0; i++) {
    world->unchecked = true; /* the payload is the input's */
    one(&input);
    world_check(world);
  }
  world_end(world);
  arena_leave();
  return 0;
}
