/* SPDX-License-Identifier: Apache-2.0 */
/* TCP options: the input is the header's options, to the last byte of its memory. */
#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp_options.h"
#include "harp/stack/tcp/tcp_segment.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  struct harp_segment segment = {.window_scale = -1};
  uint32_t length = (uint32_t)HARP_MIN(size, (size_t)(TCP_MAX_HEADER - TCP_HEADER));
  bool good = tcp_options_parse(&segment, data + size - length, length);
  FUZZ_EXPECT(segment.window_scale >= -1 && segment.window_scale <= 14);
  FUZZ_EXPECT(segment.sack_count <= TCP_MAX_SACKS);
  FUZZ_EXPECT(segment.has_timestamp || (segment.timestamp == 0 && segment.echo == 0));
  FUZZ_EXPECT(good || length > 0);
  return 0;
}
