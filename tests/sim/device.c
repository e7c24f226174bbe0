/* SPDX-License-Identifier: Apache-2.0 */
/* A host's NIC: it cuts large segments, computes checksums only when they are needed, and
 * rejects frames when its queue is full. */
#include <errno.h>
#include <string.h>

#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/ip/checksum.h"
#include "tests/sim/sim.h"

/* Reads a gather list sequentially. */
struct cursor {
  const struct iovec *iov;
  size_t offset;
};

static void take(struct cursor *cursor, uint8_t *out, size_t length)
{
  while (length) {
    size_t left = cursor->iov->iov_len - cursor->offset;
    size_t part = left < length ? left : length;
    memcpy(out, (const uint8_t *)cursor->iov->iov_base + cursor->offset, part);
    out += part;
    length -= part;
    cursor->offset += part;
    if (cursor->offset == cursor->iov->iov_len) {
      cursor->iov++;
      cursor->offset = 0;
    }
  }
}

static void put_checksum(uint8_t *field, uint16_t sum) { memcpy(field, &sum, 2); }

void device_complete_checksum(struct sim_frame *frame)
{
  if (!frame->unsummed) {
    return;
  }
  uint8_t *ip = frame->data, *tcp = ip + IP_HEADER;
  uint32_t length = frame->length - IP_HEADER;
  struct harp_sum sum = {0};
  memset(tcp + TCP_CHECKSUM, 0, 2);
  harp_sum_add_pseudo(&sum, load_address(ip + IP_SRC), load_address(ip + IP_DST), IP_PROTOCOL_TCP,
                      length);
  harp_sum_add(&sum, tcp, length);
  put_checksum(tcp + TCP_CHECKSUM, (uint16_t)~harp_sum_fold(&sum));
  frame->unsummed = false;
}

/* The address identifies the host. A stack sends only to known hosts. */
static uint16_t target_of(const struct sim_frame *frame)
{
  return (uint16_t)(__builtin_bswap32(load_address(frame->data + IP_DST)) -
                    __builtin_bswap32(host_address(0)));
}

static void launch(struct sim_host *host, struct sim_frame *frame)
{
  struct sim *sim = host->sim;
  frame->source = host->index;
  frame->target = target_of(frame);
  sim->counts.frames++;
  sim->quiet_frames++;
  watch_sent(sim, frame);
  capture_frame(sim, host->index, frame, true);
  link_send(sim, &host->nic, frame);
}

/* Writes the headers of the piece that begins at offset of a large segment's payload. */
static void write_headers(struct sim_frame *frame, const struct harp_tx_frame *large,
                          uint32_t offset, bool last)
{
  uint8_t *ip = frame->data, *tcp = ip + IP_HEADER;
  memcpy(ip, large->iov[0].iov_base, large->header_length);
  store_be16(ip + IP_TOTAL_LENGTH, (uint16_t)frame->length);
  put_checksum(ip + IP_SUM, 0);
  put_checksum(ip + IP_SUM, harp_checksum(ip, IP_HEADER));
  store_be32(tcp + TCP_SEQUENCE, load_be32(tcp + TCP_SEQUENCE) + offset);
  if (!last) {
    tcp[TCP_FLAG_BYTE] &= (uint8_t)~(FLAG_FIN | FLAG_PSH);
  }
}

static void cut(struct sim_host *host, const struct harp_tx_frame *large)
{
  uint32_t payload = large->length - large->header_length;
  struct cursor cursor = {large->iov, 0};
  uint8_t headers[128];
  take(&cursor, headers, large->header_length);
  for (uint32_t offset = 0; offset < payload;) {
    uint32_t left = payload - offset;
    uint32_t part = left < large->segment_size ? left : large->segment_size;
    struct sim_frame *frame = frame_new(host->sim, large->header_length + part);
    write_headers(frame, large, offset, part == left);
    take(&cursor, frame->data + large->header_length, part);
    frame->unsummed = true;
    launch(host, frame);
    offset += part;
  }
}

int device_transmit(void *user, const struct harp_tx_frame *given)
{
  struct sim_host *host = user;
  struct sim *sim = host->sim;
  if (link_backlog(&host->nic, sim->now) + given->length > host->nic.queue / 2) {
    /* The other half is for the headers that cutting a large segment adds. */
    host->refused = true;
    sim->counts.nic_full++;
    return -EAGAIN;
  }
  if (given->segment_size) {
    sim->counts.large_segments++;
    cut(host, given);
    return 0;
  }
  struct sim_frame *frame = frame_new(sim, given->length);
  struct cursor cursor = {given->iov, 0};
  take(&cursor, frame->data, given->length);
  frame->unsummed = given->checksum_needed;
  launch(host, frame);
  return 0;
}

void device_refuse(struct sim *sim, const struct sim_frame *frame, uint32_t mtu)
{
  enum { QUOTED = IP_HEADER + 8 };
  if (frame->data[IP_PROTOCOL] != IP_PROTOCOL_TCP) {
    return;
  }
  struct sim_frame *answer = frame_new(sim, IP_HEADER + ICMP_HEADER + QUOTED);
  uint8_t *ip = answer->data, *icmp = ip + IP_HEADER;
  memset(ip, 0, answer->length);
  ip[0] = 0x45;
  store_be16(ip + IP_TOTAL_LENGTH, (uint16_t)answer->length);
  ip[IP_TTL_BYTE] = 64;
  ip[IP_PROTOCOL] = IP_PROTOCOL_ICMP;
  store_address(ip + IP_SRC, load_address(frame->data + IP_DST));
  store_address(ip + IP_DST, load_address(frame->data + IP_SRC));
  put_checksum(ip + IP_SUM, harp_checksum(ip, IP_HEADER));
  icmp[ICMP_TYPE] = ICMP_UNREACHABLE;
  icmp[ICMP_CODE] = ICMP_CODE_TOO_BIG;
  store_be16(icmp + ICMP_NEXT_MTU, (uint16_t)mtu);
  memcpy(icmp + ICMP_HEADER, frame->data, QUOTED);
  put_checksum(icmp + ICMP_CHECKSUM, harp_checksum(icmp, ICMP_HEADER + QUOTED));
  answer->source = frame->target;
  answer->target = frame->source;
  link_send(sim, &sim->hosts[frame->target].nic, answer);
}
