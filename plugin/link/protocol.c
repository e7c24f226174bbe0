/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/link/protocol.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "harp/fnv1a.h"
#include "plugin/link/crc32c.h"

#define HELLO_MAGIC 0x48415250u   /* "HARP" */
#define WELCOME_MAGIC 0x68617270u /* "harp" */

static const uint8_t handle_magic[2] = {0x48, 0xb2};

static void put(uint8_t *p, uint64_t value, int size)
{
  for (int i = size - 1; i >= 0; i--) {
    p[i] = (uint8_t)value;
    value >>= 8;
  }
}

static uint64_t take(const uint8_t *p, int size)
{
  uint64_t value = 0;
  for (int i = 0; i < size; i++) {
    value = value << 8 | p[i];
  }
  return value;
}

uint16_t wire_version_common(uint16_t peer_min, uint16_t peer_max)
{
  uint16_t highest = peer_max < WIRE_VERSION_MAX ? peer_max : WIRE_VERSION_MAX;
  return highest >= WIRE_VERSION_MIN && highest >= peer_min ? highest : 0;
}

int token_draw(uint8_t token[TOKEN_SIZE])
{
  if (getrandom(token, TOKEN_SIZE, 0) != TOKEN_SIZE) {
    return -EIO;
  }
  token[3] &= 0x7f; /* the last byte of a number has its sign */
  token[15] &= 0x7f;
  return 0;
}

bool token_same(const uint8_t a[TOKEN_SIZE], const uint8_t b[TOKEN_SIZE])
{
  uint8_t difference = 0;
  for (int i = 0; i < TOKEN_SIZE; i++) {
    difference |= a[i] ^ b[i];
  }
  return difference == 0;
}

/* Detects damaged and foreign handles. The token, not this check, protects from forgery. */
static uint32_t handle_check(const uint8_t *bytes) { return fnv1a_32(FNV1A_32_BEGIN, bytes, 44); }

void handle_write(const struct handle *handle, uint8_t out[HANDLE_SIZE])
{
  memset(out, 0, HANDLE_SIZE);
  memcpy(out, handle_magic, sizeof handle_magic);
  out[2] = handle->version_min;
  out[3] = handle->version_max;
  memcpy(out + 4, &handle->address, 4);
  for (int i = 0; i < HANDLE_INSTANCES; i++) {
    put(out + 8 + 2 * i, handle->ports[i], 2);
  }
  out[24] = handle->instances;
  out[25] = handle->flags;
  put(out + 26, handle->mtu, 2);
  memcpy(out + 28, handle->token, TOKEN_SIZE);
  put(out + 44, handle_check(out), 4);
  out[56] = (uint8_t)(handle->device + 1);
  out[57] = (uint8_t)~out[56];
}

/* Describes a foreign handle, with the peer's address if it contains one. */
static void describe_foreign_handle(const uint8_t *in, char *why, uint32_t size)
{
  uint16_t family;
  char address[INET6_ADDRSTRLEN] = "?";
  memcpy(&family, in, sizeof family);
  if (family == AF_INET) {
    inet_ntop(AF_INET, in + 4, address, sizeof address);
  } else if (family == AF_INET6) {
    inet_ntop(AF_INET6, in + 8, address, sizeof address);
  }
  if (family == AF_INET || family == AF_INET6) {
    snprintf(why, size, "the peer at %s port %u uses a socket transport, not HARP", address,
             (unsigned)take(in + 2, 2));
  } else {
    snprintf(why, size, "the peer's handle is not HARP's (it begins with %02x %02x %02x %02x)",
             in[0], in[1], in[2], in[3]);
  }
}

int handle_read(struct handle *handle, const uint8_t in[HANDLE_SIZE], char *why, uint32_t size)
{
  if (memcmp(in, handle_magic, sizeof handle_magic) != 0 || take(in + 44, 4) != handle_check(in)) {
    describe_foreign_handle(in, why, size);
    return -EPROTO;
  }
  *handle = (struct handle){
      .version_min = in[2],
      .version_max = in[3],
      .instances = in[24],
      .flags = in[25],
      .mtu = (uint16_t)take(in + 26, 2),
      /* Zero from releases without devices. The check does not cover it, so it has its own. */
      .device = in[56] > 0 && (in[56] ^ in[57]) == 0xff ? in[56] - 1u : HANDLE_NO_DEVICE,
  };
  memcpy(&handle->address, in + 4, 4);
  memcpy(handle->token, in + 28, TOKEN_SIZE);
  for (int i = 0; i < HANDLE_INSTANCES; i++) {
    handle->ports[i] = (uint16_t)take(in + 8 + 2 * i, 2);
  }
  char address[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, &handle->address, address, sizeof address);
  if (wire_version_common(handle->version_min, handle->version_max) == 0) {
    snprintf(why, size, "the peer at %s speaks wire versions %u to %u, this HARP %d to %d", address,
             handle->version_min, handle->version_max, WIRE_VERSION_MIN, WIRE_VERSION_MAX);
    return -EPROTONOSUPPORT;
  }
  if (handle->instances == 0 || handle->instances > HANDLE_INSTANCES || handle->address == 0) {
    snprintf(why, size, "the handle of the peer at %s contradicts itself", address);
    return -EPROTO;
  }
  return 0;
}

uint64_t handle_scratch(const uint8_t in[HANDLE_SIZE]) { return take(in + 48, 8); }

void handle_set_scratch(uint8_t out[HANDLE_SIZE], uint64_t value) { put(out + 48, value, 8); }

void hello_write(const struct hello *hello, uint8_t out[HELLO_SIZE])
{
  memset(out, 0, HELLO_SIZE);
  put(out, HELLO_MAGIC, 4);
  put(out + 4, hello->version_min, 2);
  put(out + 6, hello->version_max, 2);
  memcpy(out + 8, hello->token, TOKEN_SIZE);
  put(out + 24, hello->link, 8);
  put(out + 32, hello->flow, 2);
  put(out + 34, hello->flows, 2);
  put(out + 36, hello->epoch, 4);
  put(out + 40, hello->mtu, 2);
  out[42] = hello->flags;
  memcpy(out + HELLO_PROOF, hello->proof, PROOF_SIZE);
}

bool hello_read(struct hello *hello, const uint8_t in[HELLO_SIZE])
{
  *hello = (struct hello){
      .version_min = (uint16_t)take(in + 4, 2),
      .version_max = (uint16_t)take(in + 6, 2),
      .link = take(in + 24, 8),
      .flow = (uint16_t)take(in + 32, 2),
      .flows = (uint16_t)take(in + 34, 2),
      .epoch = (uint32_t)take(in + 36, 4),
      .mtu = (uint16_t)take(in + 40, 2),
      .flags = in[42],
  };
  memcpy(hello->token, in + 8, TOKEN_SIZE);
  memcpy(hello->proof, in + HELLO_PROOF, PROOF_SIZE);
  return take(in, 4) == HELLO_MAGIC && hello->flow < hello->flows;
}

void welcome_write(const struct welcome *welcome, uint8_t out[WELCOME_SIZE])
{
  memset(out, 0, WELCOME_SIZE);
  put(out, WELCOME_MAGIC, 4);
  put(out + 4, welcome->version, 2);
  put(out + 6, welcome->status, 2);
  put(out + 8, welcome->link, 8);
  put(out + 16, welcome->flow, 2);
  put(out + 18, welcome->mtu, 2);
  put(out + 20, welcome->epoch, 4);
  memcpy(out + WELCOME_PROOF, welcome->proof, PROOF_SIZE);
  put(out + 56, welcome->received, 8);
}

bool welcome_read(struct welcome *welcome, const uint8_t in[WELCOME_SIZE])
{
  *welcome = (struct welcome){
      .version = (uint16_t)take(in + 4, 2),
      .status = (uint16_t)take(in + 6, 2),
      .link = take(in + 8, 8),
      .flow = (uint16_t)take(in + 16, 2),
      .mtu = (uint16_t)take(in + 18, 2),
      .epoch = (uint32_t)take(in + 20, 4),
      .received = take(in + 56, 8),
  };
  memcpy(welcome->proof, in + WELCOME_PROOF, PROOF_SIZE);
  return take(in, 4) == WELCOME_MAGIC;
}

bool welcome_has_nics(const struct welcome *welcome)
{
  return welcome->status == 0 && welcome->version >= WIRE_VERSION_NICS;
}

void nic_list_write(const struct nic_list *list, uint8_t out[NIC_LIST_SIZE])
{
  memset(out, 0, NIC_LIST_SIZE);
  out[0] = (uint8_t)list->count;
  for (unsigned i = 0; i < list->count; i++) {
    uint8_t *entry = out + 4 + 8 * i;
    memcpy(entry, &list->of[i].at.address, 4);
    put(entry + 4, list->of[i].at.port, 2);
    entry[6] = list->of[i].device;
    entry[7] = list->of[i].flags;
  }
}

void nic_list_read(struct nic_list *list, const uint8_t in[NIC_LIST_SIZE])
{
  unsigned count = in[0] < NIC_LIST_ENTRIES ? in[0] : NIC_LIST_ENTRIES;
  list->count = 0;
  for (unsigned i = 0; i < count; i++) {
    const uint8_t *entry = in + 4 + 8 * i;
    struct nic_list_entry *nic = &list->of[list->count];
    memcpy(&nic->at.address, entry, 4);
    nic->at.port = (uint16_t)take(entry + 4, 2);
    nic->device = entry[6];
    nic->flags = entry[7];
    list->count += nic->at.address != 0 && nic->at.port != 0;
  }
}

void chunk_write(const struct chunk *chunk, uint8_t out[CHUNK_HEADER_SIZE])
{
  put(out, chunk->message, 8);
  put(out + 8, chunk->offset, 8);
  put(out + 16, chunk->length, 4);
  out[20] = chunk->type;
  out[21] = chunk->flags;
  out[22] = out[23] = 0;
}

void chunk_read(struct chunk *chunk, const uint8_t in[CHUNK_HEADER_SIZE])
{
  *chunk = (struct chunk){
      .message = take(in, 8),
      .offset = take(in + 8, 8),
      .length = (uint32_t)take(in + 16, 4),
      .type = in[20],
      .flags = in[21],
  };
}

void chunk_header_seal(uint8_t header[CHUNK_CHECKED_HEADER_SIZE])
{
  put(header + CHUNK_HEADER_SIZE, crc32c(0, header, CHUNK_HEADER_SIZE), 4);
}

bool chunk_header_intact(const uint8_t header[CHUNK_CHECKED_HEADER_SIZE])
{
  return take(header + CHUNK_HEADER_SIZE, 4) == crc32c(0, header, CHUNK_HEADER_SIZE);
}

void chunk_trailer_write(uint32_t crc, uint8_t out[CHUNK_TRAILER_SIZE]) { put(out, crc, 4); }

uint32_t chunk_trailer_read(const uint8_t in[CHUNK_TRAILER_SIZE]) { return (uint32_t)take(in, 4); }
