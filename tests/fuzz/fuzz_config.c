/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes ztcp*.conf. Any bytes give either one error line, or a configuration that can be
 * written and read again with the same meaning. */
#include <stdio.h>
#include <string.h>

#include "harp/engine/config.h"
#include "tests/fuzz/fuzz.h"

enum { VALUE_SIZE = 4096, TEXT_SIZE = HARP_CONFIG_KEYS * (VALUE_SIZE + 32) };

static void check_error(const char *error)
{
  size_t length = strnlen(error, HARP_CONFIG_ERROR_SIZE);
  FUZZ_EXPECT(length > 0 && length < HARP_CONFIG_ERROR_SIZE);
  for (size_t i = 0; i < length; i++) {
    FUZZ_EXPECT((unsigned char)error[i] >= 0x20);
  }
}

static size_t write_out(const struct harp_config *config, char *text)
{
  char value[VALUE_SIZE];
  size_t used = 0;
  for (int key = 0; key < HARP_CONFIG_KEYS; key++) {
    harp_config_format(config, (enum harp_config_key)key, value, sizeof value);
    if (value[0]) {
      used += (size_t)snprintf(text + used, TEXT_SIZE - used, "%s = %s\n",
                               harp_config_key_info[key].name, value);
    }
  }
  return used;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  static struct harp_config config, again;
  static char first[TEXT_SIZE], second[TEXT_SIZE], error[HARP_CONFIG_ERROR_SIZE];
  if (harp_config_parse((const char *)data, size, "ztcp0.conf", &config, error) != 0) {
    check_error(error);
    return 0;
  }
  harp_config_shareable(&config);
  harp_config_innermost(config.device);
  size_t length = write_out(&config, first);
  FUZZ_EXPECT(harp_config_parse(first, length, "again", &again, error) == 0);
  FUZZ_EXPECT(write_out(&again, second) == length && memcmp(first, second, length) == 0);
  return 0;
}
