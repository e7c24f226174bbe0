/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/remote.h"

#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_conn.h"
#include "harp/stack/tcp/tcp_options.h"
#include "plugin/link/crc32c.h"
#include "tests/fuzz/frames.h"

enum { FIRST_PORT = 2000, FIRST_NUMBER = 0x1000, SEGMENTS_MAX = 16, SEGMENT_MAX = 1400 };

static struct remotes *remotes;
static uint8_t streams[REMOTES][REMOTE_STREAM]; /* bytes beyond `waiting` are scratch */

const uint8_t *message_at(uint64_t message, uint64_t offset)
{
  return pattern_at((uint32_t)(message * 977 + offset));
}

static uint8_t *stream(const struct remote *remote) { return streams[remote - remotes->all]; }

struct harp_tcp *remote_tcp(const struct remote *remote)
{
  return remote->used
             ? tcp_lookup(host_stack(remote->queue), HOST_PEER, remote->port, remote->to_port)
             : NULL;
}

/* --- Data from HARP --- */

static struct reader *reader_of(uint64_t link, uint16_t flow)
{
  struct reader *reader = remotes->readers;
  while (reader < remotes->readers + REMOTES && (reader->link != link || reader->flow != flow)) {
    reader++;
  }
  return reader < remotes->readers + REMOTES ? reader : NULL;
}

static void begin_chunk(struct reader *reader)
{
  chunk_read(&reader->chunk, reader->header);
  FUZZ_EXPECT(reader->chunk.type == CHUNK_DATA);
  FUZZ_EXPECT((reader->chunk.flags &
               ~(CHUNK_LAST | CHUNK_TRAILER | CHUNK_SHARES_ACK | CHUNK_ACK_LAST)) == 0);
  reader->left = reader->chunk.length;
  reader->trailer_left = reader->chunk.flags & CHUNK_TRAILER ? CHUNK_TRAILER_SIZE : 0;
  reader->crc = 0;
}

static uint32_t read_header(struct reader *reader, const uint8_t *bytes, uint32_t length)
{
  uint32_t part = HARP_MIN(length, CHUNK_HEADER_SIZE - reader->header_size);
  memcpy(reader->header + reader->header_size, bytes, part);
  reader->header_size += part;
  if (reader->header_size == CHUNK_HEADER_SIZE) {
    begin_chunk(reader);
  }
  return part;
}

static uint32_t read_payload(struct reader *reader, const uint8_t *bytes, uint32_t length)
{
  uint32_t part = HARP_MIN(HARP_MIN(length, reader->left), (uint32_t)PATTERN_PERIOD);
  uint64_t at = reader->chunk.offset + reader->chunk.length - reader->left;
  FUZZ_EXPECT(memcmp(bytes, message_at(reader->chunk.message, at), part) == 0);
  if (reader->trailer_left) {
    reader->crc = crc32c(reader->crc, bytes, part);
  }
  reader->left -= part;
  return part;
}

static uint32_t read_trailer(struct reader *reader, const uint8_t *bytes, uint32_t length)
{
  uint32_t part = HARP_MIN(length, reader->trailer_left);
  for (uint32_t i = 0; i < part; i++) {
    FUZZ_EXPECT(bytes[i] == (uint8_t)(reader->crc >> 8 * --reader->trailer_left));
  }
  return part;
}

static void read_chunks(struct reader *reader, const uint8_t *bytes, uint32_t length)
{
  reader->total += length;
  while (length > 0 && !reader->content_unknown) {
    uint32_t part = reader->header_size < CHUNK_HEADER_SIZE ? read_header(reader, bytes, length)
                    : reader->left > 0                      ? read_payload(reader, bytes, length)
                                                            : read_trailer(reader, bytes, length);
    if (reader->header_size == CHUNK_HEADER_SIZE && !reader->left && !reader->trailer_left) {
      reader->header_size = 0;
    }
    bytes += part;
    length -= part;
  }
}

/* Reads HARP's last welcome, if it is complete. */
static bool last_welcome(const struct remote *remote, struct welcome *welcome)
{
  return !remote->incoming && remote->received > 0 && remote->received % WELCOME_SIZE == 0 &&
         remote->received <= HANDSHAKE_MAX &&
         welcome_read(welcome, remote->handshake_in + remote->received - WELCOME_SIZE);
}

/* The welcome of a replacing connection must contain the bytes that HARP received before. */
static void check_fence(const struct remote *remote)
{
  struct welcome welcome;
  if (remote->goes_on && last_welcome(remote, &welcome) && welcome.status == 0) {
    FUZZ_EXPECT(welcome.received == remote->before);
  }
}

/* Processes new bytes of a connection, in order. */
static void receive(struct remote *remote, const uint8_t *bytes, uint32_t length)
{
  if (remote->reader) {
    read_chunks(remote->reader, bytes, length);
  } else if (!remote->unread && remote->received + length <= HANDSHAKE_MAX) {
    memcpy(remote->handshake_in + remote->received, bytes, length);
    remote->received += length;
    remote->hello_size = remote->received;
    check_fence(remote);
    return;
  } else {
    FUZZ_EXPECT(!remote->incoming || remote->unread); /* no chunks before the welcome */
  }
  remote->received += length;
}

static struct remote *find(unsigned queue, uint16_t port, uint16_t to_port)
{
  for (struct remote *remote = remotes->all; remote < remotes->all + REMOTES; remote++) {
    if (remote->used && remote->queue == queue && remote->port == port &&
        remote->to_port == to_port) {
      return remote;
    }
  }
  return NULL;
}

/* Retransmitted bytes must equal the first ones, because the flow still owns their memory. */
static void check_retransmitted(const struct remote *remote, uint32_t at, const uint8_t *bytes,
                                uint32_t length)
{
  if (at < remote->hello_size) {
    uint32_t part = HARP_MIN(length, remote->hello_size - at);
    FUZZ_EXPECT(memcmp(bytes, remote->handshake_in + at, part) == 0);
  }
}

/* The host opens a connection and waits for an answer. */
static void take_call(unsigned queue, uint16_t port, uint16_t to_port)
{
  struct remote *remote = find(queue, port, to_port);
  for (int i = 0; !remote && i < REMOTES; i++) {
    remote = remote_tcp(&remotes->all[i]) ? NULL : &remotes->all[i];
  }
  if (remote && !remotes->away) {
    *remote = (struct remote){.used = true,
                              .incoming = true,
                              .queue = queue,
                              .port = port,
                              .to_port = to_port,
                              .base = FIRST_NUMBER + 1};
  }
}

void remotes_receive(unsigned queue, const struct harp_tx_frame *frame)
{
  const uint8_t *ip = frame->iov[0].iov_base, *tcp = ip + IP_HEADER;
  if (ip[IP_PROTOCOL] != IP_PROTOCOL_TCP) {
    return;
  }
  uint16_t port = load_be16(tcp + TCP_DEST), to_port = load_be16(tcp + TCP_SOURCE);
  uint8_t flags = tcp[TCP_FLAG_BYTE];
  if ((flags & (FLAG_SYN | FLAG_ACK)) == FLAG_SYN) {
    take_call(queue, port, to_port);
    return;
  }
  struct remote *remote = find(queue, port, to_port);
  const struct harp_tcp *own = remote ? remote_tcp(remote) : NULL;
  if (!own || remotes->away) {
    return;
  }
  uint32_t at = load_be32(tcp + TCP_SEQUENCE) - (own->snd.iss + 1);
  for (int i = 1; i < frame->iov_count; i++) {
    uint32_t length = (uint32_t)frame->iov[i].iov_len;
    FUZZ_EXPECT(at <= remote->received); /* dropped bytes are retransmitted */
    uint32_t known = HARP_MIN(remote->received - at, length);
    check_retransmitted(remote, at, frame->iov[i].iov_base, known);
    receive(remote, (const uint8_t *)frame->iov[i].iov_base + known, length - known);
    at += length;
  }
}

bool remote_hello(const struct remote *remote, struct hello *hello)
{
  uint32_t last = remote->received >= 2 * HELLO_SIZE ? HELLO_SIZE : 0;
  return remote->incoming && remote->received >= last + HELLO_SIZE &&
         hello_read(hello, remote->handshake_in + last);
}

bool remote_welcome(const struct remote *remote)
{
  struct welcome welcome;
  return last_welcome(remote, &welcome) && welcome.status == 0;
}

bool remote_challenged(const struct remote *remote)
{
  struct welcome welcome;
  return last_welcome(remote, &welcome) && welcome.status == WELCOME_CHALLENGE;
}

uint64_t remote_received(const struct hello *hello)
{
  const struct reader *reader = reader_of(hello->link, hello->flow);
  return reader ? reader->total : 0;
}

void remote_reads(struct remote *remote, const struct hello *hello, uint64_t received)
{
  struct reader *reader = reader_of(hello->link, hello->flow);
  if (!reader) {
    reader = reader_of(0, 0);
    reader = reader ? reader : &remotes->readers[0];
    *reader = (struct reader){.link = hello->link, .flow = hello->flow};
  }
  reader->content_unknown |= received != reader->total;
  for (struct remote *old = remotes->all; old < remotes->all + REMOTES; old++) {
    if (old != remote && old->reader == reader) { /* its later data does not count */
      old->reader = NULL;
      old->unread = old->left_alone = true;
    }
  }
  remote->reader = reader;
}

void remote_give_up(struct remote *remote)
{
  struct hello hello;
  if (remote_hello(remote, &hello)) {
    remote_reads(remote, &hello, UINT64_MAX);
  }
  remote->reader = NULL;
  remote->unread = true;
}

/* --- Data to HARP --- */

static void emit(struct remote *remote, uint32_t seq, uint32_t ack, uint8_t flags, uint16_t window,
                 const uint8_t *payload, uint32_t length, unsigned choice)
{
  uint8_t headers[IP_HEADER + TCP_MAX_HEADER];
  const struct harp_tcp *tcp = remote_tcp(remote);
  struct fuzz_segment segment = {.from = HOST_PEER,
                                 .to = HOST_ADDRESS,
                                 .from_port = remote->port,
                                 .to_port = remote->to_port,
                                 .seq = seq,
                                 .ack = ack,
                                 .window = window,
                                 .flags = flags,
                                 .payload = payload,
                                 .payload_length = length};
  if (remote->timestamps) {
    segment.option_length =
        (uint8_t)(frame_timestamp(segment.options, remotes->clock++, tcp ? tcp_timestamp(tcp) : 0) -
                  segment.options);
  }
  uint32_t header_length = frame_tcp_headers(&segment, headers);
  struct host_frame *frame = host_frame(remote->queue, header_length, length);
  if (frame) {
    memcpy(frame->bytes, headers, header_length);
    memcpy(frame->bytes + header_length, payload ? payload : headers, payload ? length : 0);
    frame->checksum_good = choice & REMOTE_CHECKED;
    frame->scattered = choice & REMOTE_PLACED;
    frame_mend(frame->bytes, frame->length);
  }
}

bool remote_open(struct remote *remote, unsigned queue, uint16_t port, bool timestamps)
{
  *remote = (struct remote){.used = true,
                            .queue = queue,
                            .timestamps = timestamps,
                            .port = remotes->next_port++,
                            .to_port = port,
                            .base = FIRST_NUMBER + 1};
  emit(remote, FIRST_NUMBER, 0, FLAG_SYN, 32768, NULL, 0, REMOTE_CHECKED);
  host_poll();
  remote_push(remote, 0, 32768, REMOTE_CHECKED);
  host_poll();
  const struct harp_tcp *tcp = remote_tcp(remote);
  return tcp && tcp->state == TCP_ESTABLISHED;
}

void remote_answer(struct remote *remote)
{
  const struct harp_tcp *tcp = remote_tcp(remote);
  if (tcp && tcp->state == TCP_SYN_SENT) {
    emit(remote, FIRST_NUMBER, tcp->snd.iss + 1, FLAG_SYN | FLAG_ACK, 32768, NULL, 0,
         REMOTE_CHECKED);
  }
}

uint32_t remote_room(const struct remote *remote) { return REMOTE_STREAM - remote->waiting; }

void remote_say(struct remote *remote, const void *bytes, uint32_t length)
{
  length = HARP_MIN(length, remote_room(remote));
  memcpy(stream(remote) + remote->waiting, bytes, length);
  remote->waiting += length;
}

/* Drops the bytes that the host has received. Returns rcv_nxt. */
static uint32_t taken(struct remote *remote, const struct harp_tcp *tcp)
{
  uint32_t part = HARP_MIN(tcp->rcv.nxt - remote->base, remote->waiting);
  memmove(stream(remote), stream(remote) + part, remote->waiting - part);
  remote->waiting -= part;
  remote->base += part;
  return tcp->rcv.nxt;
}

bool remote_go_on(struct remote *remote, struct remote *old)
{
  taken(old, remote_tcp(old));
  bool fits = old->waiting <= remote_room(remote);
  remote_say(remote, stream(old), old->waiting);
  remote->chunk = old->chunk;
  remote->left = old->left;
  remote->crc = old->crc;
  remote->in_chunk = old->in_chunk;
  remote->before = old->before + (old->base - (FIRST_NUMBER + 1)) - old->handshake_sent;
  remote->goes_on = true;
  old->left_alone = true;
  return fits;
}

void remote_push(struct remote *remote, uint32_t cut, uint16_t window, unsigned choice)
{
  const struct harp_tcp *tcp = remote_tcp(remote);
  if (!tcp || tcp->state == TCP_SYN_SENT || remote->left_alone) {
    return;
  }
  uint32_t seq = taken(remote, tcp);
  uint32_t ack = choice & REMOTE_UNACKED ? tcp->snd.una : tcp->snd.nxt;
  cut = cut && cut < SEGMENT_MAX ? cut : SEGMENT_MAX;
  uint32_t segments = HARP_MIN((remote->waiting + cut - 1) / cut, (uint32_t)SEGMENTS_MAX);
  for (uint32_t i = 0; i < segments; i++) {
    uint32_t from = cut * (choice & REMOTE_REVERSED ? segments - 1 - i : i);
    emit(remote, seq + from, ack, FLAG_ACK, window, stream(remote) + from,
         HARP_MIN(cut, remote->waiting - from), choice);
  }
  if (segments == 0) {
    emit(remote, seq, ack, FLAG_ACK, window, NULL, 0, choice);
  }
}

void remote_end(struct remote *remote, uint8_t flags)
{
  const struct harp_tcp *tcp = remote_tcp(remote);
  if (tcp) {
    emit(remote, tcp->rcv.nxt, tcp->snd.nxt, flags, 32768, NULL, 0, REMOTE_CHECKED);
  }
}

struct remotes *remotes_create(void)
{
  remotes = calloc(1, sizeof *remotes);
  remotes->next_port = FIRST_PORT;
  return remotes;
}
