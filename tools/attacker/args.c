/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/attacker/attacker.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_hex(const char *text, uint8_t *out, size_t size, const char *forwarder)
{
  for (size_t i = 0; i < size; i++) {
    int used = 0;
    if (i && *forwarder && *text++ != *forwarder) {
      return false;
    }
    if (sscanf(text, "%2hhx%n", &out[i], &used) != 1 || used != 2) {
      return false;
    }
    text += 2;
  }
  return *text == '\0';
}

bool read_number(const char *text, uint64_t most, uint64_t *out)
{
  char *end;
  errno = 0;
  *out = strtoull(text, &end, 10);
  return errno == 0 && *text >= '0' && *text <= '9' && *end == '\0' && *out <= most;
}

static bool read_port(const char *text, uint16_t *out)
{
  uint64_t value;
  bool good = read_number(text, 65535, &value);
  *out = (uint16_t)value;
  return good;
}

static bool set(struct flood *flood, const char *key, const char *value)
{
  if (strcmp(key, "to") == 0) {
    return inet_pton(AF_INET, value, &flood->victim) == 1;
  }
  if (strcmp(key, "nobody") == 0) {
    return inet_pton(AF_INET, value, &flood->nobody) == 1;
  }
  if (strcmp(key, "from") == 0) {
    return inet_pton(AF_INET, value, &flood->from) == 1;
  }
  if (strcmp(key, "peer") == 0) {
    return inet_pton(AF_INET, value, &flood->peer) == 1;
  }
  if (strcmp(key, "to_mac") == 0) {
    return read_hex(value, flood->to_mac, 6, ":");
  }
  if (strcmp(key, "hello") == 0) {
    return read_hex(value, flood->hello, FLOOD_HELLO, "");
  }
  if (strcmp(key, "port") == 0) {
    return read_port(value, &flood->port);
  }
  if (strcmp(key, "peer_port") == 0) {
    return read_port(value, &flood->peer_port);
  }
  if (strcmp(key, "own_port") == 0) {
    return read_port(value, &flood->own_port);
  }
  if (strcmp(key, "rate") == 0) {
    return read_number(value, 10000000, &flood->rate) && flood->rate > 0;
  }
  if (strcmp(key, "ms") == 0) {
    return read_number(value, 3600000, &flood->ms) && flood->ms > 0;
  }
  if (strcmp(key, "phase_ms") == 0) {
    return read_number(value, 3600000, &flood->phase_ms) && flood->phase_ms > 0;
  }
  return false;
}

bool flood_from_args(struct flood *flood, const struct attack *attack, char **args)
{
  flood->random = 1;
  for (; *args; args++) {
    char *equals = strchr(*args, '=');
    if (equals) {
      *equals = '\0';
    }
    if (!equals || !set(flood, *args, equals + 1)) {
      fprintf(stderr, "harp-flood: %s: no such key, or a bad value; harp-flood --help\n", *args);
      return false;
    }
  }
  if (!flood->victim || !flood->from || !flood->port || !flood->rate || !flood->ms ||
      !flood->nobody != !flood->phase_ms) {
    fprintf(stderr, "harp-flood: to, from, port, rate and ms are needed, and both of nobody and "
                    "phase_ms or neither; harp-flood --help\n");
    return false;
  }
  if (attack->live && !(flood->peer && flood->peer_port && flood->own_port)) {
    fprintf(stderr, "harp-flood: %s needs peer, peer_port and own_port\n", attack->name);
    return false;
  }
  return true;
}
