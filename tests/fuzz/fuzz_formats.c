/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the formats between HARP hosts: NCCL's handle, the hello (with an epoch), the welcome,
 * and the chunk header. An accepted message has the same meaning when it is written again. */
#include <string.h>

#include "plugin/link/protocol.h"
#include "tests/fuzz/fuzz.h"

static void handle(const uint8_t *bytes)
{
  struct handle handle;
  char why[200] = "";
  uint8_t again[HANDLE_SIZE], scratch[HANDLE_SIZE];
  struct handle same;
  int result = handle_read(&handle, bytes, why, sizeof why);
  FUZZ_EXPECT((result == 0) == (why[0] == '\0'));
  FUZZ_EXPECT(strnlen(why, sizeof why) < sizeof why);
  if (result == 0) {
    FUZZ_EXPECT(handle.instances >= 1 && handle.instances <= HANDLE_INSTANCES);
    handle_write(&handle, again);
    FUZZ_EXPECT(handle_read(&same, again, why, sizeof why) == 0);
    FUZZ_EXPECT(memcmp(&handle, &same, sizeof handle) == 0);
  }
  memcpy(scratch, bytes, HANDLE_SIZE);
  handle_set_scratch(scratch, handle_scratch(bytes));
  FUZZ_EXPECT(memcmp(scratch, bytes, HANDLE_SIZE) == 0);
}

/* Reads a handle with a correct check, as far as handle_write allows. */
static void mended_handle(const uint8_t *bytes)
{
  struct handle handle = {.version_min = bytes[2], .version_max = bytes[3], .instances = bytes[24]};
  uint8_t rewritten[HANDLE_SIZE];
  char why[200];
  memcpy(&handle.address, bytes + 4, 4);
  handle_write(&handle, rewritten);
  int result = handle_read(&handle, rewritten, why, sizeof why);
  bool good = bytes[24] >= 1 && bytes[24] <= HANDLE_INSTANCES && handle.address != 0 &&
              wire_version_common(bytes[2], bytes[3]) != 0;
  FUZZ_EXPECT((result == 0) == good);
}

static void handshake(const uint8_t *bytes)
{
  struct hello hello;
  struct welcome welcome;
  uint8_t again[HELLO_SIZE];
  if (hello_read(&hello, bytes)) {
    FUZZ_EXPECT(hello.flow < hello.flows);
    hello_write(&hello, again);
    FUZZ_EXPECT(memcmp(again, bytes, 42) == 0 && memcmp(again + 48, bytes + 48, 32) == 0);
  }
  if (welcome_read(&welcome, bytes)) {
    welcome_write(&welcome, again);
    FUZZ_EXPECT(memcmp(again, bytes, WELCOME_SIZE) == 0);
  }
}

static void chunk(const uint8_t *bytes)
{
  struct chunk chunk;
  uint8_t again[CHUNK_HEADER_SIZE];
  chunk_read(&chunk, bytes);
  chunk_write(&chunk, again);
  FUZZ_EXPECT(memcmp(again, bytes, 22) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  if (size < HELLO_SIZE) {
    return 0;
  }
  const uint8_t *last = data + size - HELLO_SIZE; /* ends at the last byte of its memory */
  handshake(last);
  handle(last + HELLO_SIZE - HANDLE_SIZE);
  mended_handle(last);
  chunk(last + HELLO_SIZE - CHUNK_HEADER_SIZE);
  return 0;
}
