/* SPDX-License-Identifier: Apache-2.0 */
/* Makes one error per first byte, to check that the fuzzers detect it. */
#include <stdlib.h>

#include "harp/stack/pool.h"
#include "tests/fuzz/fuzz.h"

static uint8_t *block;
static struct harp_pool pool;

static void set_up(void)
{
  arena_enter();
  block = malloc(24);
  FUZZ_EXPECT(block && pool_create(&pool, 100, 2) == 0);
  block[0] = 1;
  arena_keep();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  if (!block) {
    set_up();
  }
  arena_restore();
  arena_enter();
  FUZZ_EXPECT(block[0] == 1); /* restored after the previous input */
  uint8_t *fresh = malloc(10);
  uint8_t *object = pool_get(&pool);
  struct fuzz_input input = {data, size};
  volatile size_t beyond = fuzz_u8(&input);
  switch (beyond) {
  case 10: /* after the end of a new block */ fresh[beyond] = 1; break;
  case 24: /* after the end of a saved block */ block[beyond] = 1; break;
  case 30: /* in a freed block */
    free(block);
    block[beyond - 30] = 2;
    break;
  case 31: /* double free */
    free(fresh);
    free(fresh);
    break;
  case 32: /* in an object that the pool has back */
    pool_put(&pool, object);
    object[beyond] = 1;
    break;
  case 33: /* in a block that the restore discarded */
    arena_restore();
    fresh[0] = 1;
    break;
  default: /* no error, repeatedly */
    block[0] = 2;
    free(fresh);
    pool_put(&pool, object);
  }
  arena_leave();
  return 0;
}
