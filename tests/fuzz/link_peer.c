/* SPDX-License-Identifier: Apache-2.0 */
/* The peer of the link fuzzer: sends hellos, welcomes, proofs and chunks. */
#include "harp/stack/bytes.h"
#include "tests/fuzz/link_scene.h"

struct conversation *conversation(uint64_t link)
{
  struct conversation *one = scene->conversations;
  while (one->id != link && one < scene->conversations + IDS) {
    one++;
  }
  return one;
}

/* --- Hellos and welcomes --- */

const struct proof_key *key(void) { return &scene->host->transport->key; }

static void say_handshake(struct remote *remote, const struct step *step, uint8_t *bytes,
                          uint32_t size)
{
  if (step->choice & WRONG_BYTE) {
    bytes[step->b % size] ^= (uint8_t)(step->b >> 8);
  }
  uint32_t length = step->choice & CUT_OFF ? step->length % size : size;
  if (step->choice & (WRONG_BYTE | CUT_OFF)) {
    remote_give_up(remote);
    scene->wild = true;
  }
  remote_say(remote, bytes, length);
  remote->handshake_sent += length;
}

static void prove(struct remote *remote, const struct step *step, enum proof_side side,
                  uint8_t *bytes, uint32_t size, uint32_t at)
{
  struct proof_key other = *key();
  other.bytes[0] ^= step->choice & WRONG_KEY ? 1 : 0;
  memset(bytes + at, 0, PROOF_SIZE);
  if (!(step->choice & UNASKED)) {
    proof_make(&other, side, &remote->proof, bytes, size, bytes + at);
  }
}

/* Replaces a flow's connection and continues where the old one was. The content is unknown if
 * the old connection is gone. It is also unknown if the old one was not welcomed or was already
 * replaced. */
static void go_on(struct remote *remote)
{
  struct remote *old = NULL;
  for (struct remote *one = scene->remotes->all; one < scene->remotes->all + REMOTES; one++) {
    if (one != remote && !one->incoming && one->link == remote->link && one->flow == remote->flow &&
        remote_tcp(one)) {
      scene->wild |= old || one->left_alone || !remote_welcome(one);
      old = one;
    }
  }
  scene->wild = scene->wild || !old || !remote_go_on(remote, old);
}

static void say_hello(struct remote *remote, const struct step *step)
{
  uint8_t bytes[HELLO_SIZE];
  struct hello hello = {
      .version_min = step->choice & ODD_VERSIONS ? (uint16_t)step->b : 1,
      .version_max = step->choice & ODD_VERSIONS ? (uint16_t)step->c : 1,
      .link = scene->conversations[step->c % IDS].id,
      .flow = step->flags & 3,
      .flows = 1 + (step->flags >> 2 & 3),
      .epoch = step->choice & WITH_EPOCH ? step->b & 3 : 0,
      .mtu = 1500,
  };
  memcpy(hello.token, scene->handle.token, TOKEN_SIZE);
  hello.token[step->b % TOKEN_SIZE] ^= step->choice & ODD_WORD ? 1 : 0;
  bool again = remote_challenged(remote);
  scene->wild |= remote->in_chunk || (remote->link && !again);
  if (again) {
    memcpy(remote->proof.challenge, remote->handshake_in, WELCOME_SIZE);
    memcpy(bytes, remote->proof.hello, HELLO_SIZE);
    prove(remote, step, PROOF_CONNECTOR, bytes, HELLO_SIZE, HELLO_PROOF);
  } else {
    memset(hello.proof, step->flags, key()->set ? PROOF_SIZE : 0);
    hello_write(&hello, bytes);
    memcpy(remote->proof.hello, bytes, HELLO_SIZE);
    remote->link = hello.link;
    remote->flow = hello.flow;
  }
  hello_read(&hello, bytes);
  say_handshake(remote, step, bytes, HELLO_SIZE);
  if (hello.epoch > 0 && (again || !key()->set)) {
    go_on(remote);
  }
}

static void check_proof(const struct remote *remote, const struct hello *hello)
{
  uint8_t said[HELLO_SIZE], proof[PROOF_SIZE];
  memcpy(said, remote->handshake_in + HELLO_SIZE, HELLO_SIZE);
  memset(said + HELLO_PROOF, 0, PROOF_SIZE);
  proof_make(key(), PROOF_CONNECTOR, &remote->proof, said, HELLO_SIZE, proof);
  FUZZ_EXPECT(proof_same(proof, hello->proof));
}

static void say_welcome(struct remote *remote, const struct step *step)
{
  struct hello hello;
  uint8_t bytes[WELCOME_SIZE];
  if (!remote_hello(remote, &hello)) {
    return;
  }
  bool odd = step->choice & WITH_EPOCH;
  struct welcome welcome = {
      .version = 1,
      .status = step->choice & ODD_WORD ? step->flags : 0,
      .link = hello.link,
      .flow = hello.flow,
      .mtu = 1500,
      .epoch = hello.epoch,
      .received = odd ? step->c : remote_received(&hello),
  };
  if (key()->set && remote->received == HELLO_SIZE && !(step->choice & UNASKED)) {
    welcome.status = WELCOME_CHALLENGE;
    memset(welcome.proof, step->flags, PROOF_SIZE);
  }
  welcome_write(&welcome, bytes);
  if (welcome.status == WELCOME_CHALLENGE) {
    memcpy(remote->proof.hello, remote->handshake_in, HELLO_SIZE);
    memcpy(remote->proof.challenge, bytes, WELCOME_SIZE);
  } else if (key()->set && remote->received == 2 * HELLO_SIZE) {
    check_proof(remote, &hello);
    prove(remote, step, PROOF_ACCEPTOR, bytes, WELCOME_SIZE, WELCOME_PROOF);
  }
  if (welcome.status == 0) {
    remote_reads(remote, &hello, welcome.received);
  }
  if (remote->handshake_sent > 0 && remote->received == HELLO_SIZE) {
    remote_give_up(remote); /* a second hello may be on its way */
  }
  say_handshake(remote, step, bytes, WELCOME_SIZE);
}

void say_hello_or_welcome(struct remote *remote, const struct step *step)
{
  if (remote_room(remote) < HELLO_SIZE) {
    return;
  }
  if (remote->incoming) {
    say_welcome(remote, step);
  } else {
    say_hello(remote, step);
  }
}

/* --- Chunks --- */

static int32_t offset(uint32_t word) { return (int32_t)(int16_t)word * (1 << (word >> 16 & 15)); }

void say_payload(struct remote *remote, uint32_t most)
{
  uint8_t trailer[CHUNK_TRAILER_SIZE];
  uint32_t room = remote_room(remote);
  if (!remote->in_chunk || room < CHUNK_TRAILER_SIZE) {
    return;
  }
  uint32_t part = HARP_MIN(HARP_MIN(most, remote->left), room - CHUNK_TRAILER_SIZE);
  const uint8_t *data = message_at(remote->chunk.message,
                                   remote->chunk.offset + remote->chunk.length - remote->left);
  remote_say(remote, data, part);
  remote->crc = crc32c(remote->crc, data, part);
  remote->left -= part;
  if (remote->left == 0) {
    chunk_trailer_write(remote->crc, trailer);
    remote_say(remote, trailer, remote->chunk.flags & CHUNK_TRAILER ? CHUNK_TRAILER_SIZE : 0);
    remote->in_chunk = false;
  }
}

void say_chunk(struct remote *remote, const struct step *step)
{
  uint8_t header[CHUNK_HEADER_SIZE];
  struct conversation *said = conversation(remote->link);
  struct chunk chunk = {.message = said->message,
                        .offset = said->offset,
                        .length = step->length % 2048,
                        .type = CHUNK_DATA,
                        .flags = step->flags & (CHUNK_LAST | CHUNK_TRAILER)};
  if (step->flags >> 2 == 63) {
    chunk.type = (uint8_t)step->b;
    chunk.flags = (uint8_t)(step->b >> 8);
  }
  chunk.message += step->choice & ODD_MESSAGE ? (uint64_t)(int64_t)offset(step->b >> 16) : 0;
  chunk.offset += step->choice & ODD_OFFSET ? (uint64_t)(int64_t)offset(step->c) : 0;
  chunk.length = step->choice & ODD_LENGTH ? step->c : chunk.length;
  bool interrupts = step->choice & INTERRUPTS;
  if (!interrupts) {
    say_payload(remote, REMOTE_STREAM);
  }
  if (remote_room(remote) < CHUNK_HEADER_SIZE || (remote->in_chunk && !interrupts)) {
    return;
  }
  scene->wild |= remote->in_chunk;
  chunk_write(&chunk, header);
  remote_say(remote, header, CHUNK_HEADER_SIZE);
  remote->chunk = chunk;
  remote->left = chunk.length;
  remote->crc = step->choice & WRONG_SUM;
  remote->in_chunk = true;
  say_payload(remote, step->choice & HEADER_ALONE ? 0 : REMOTE_STREAM);
  if (step->choice & (ODD_MESSAGE | ODD_OFFSET | ODD_LENGTH)) {
    said->odd = true;
    return; /* the next chunk does not continue this one */
  }
  if (step->choice & WRONG_SUM && chunk.flags & CHUNK_TRAILER && !said->odd) {
    said->corrupted = chunk.message + 1;
  }
  said->offset = chunk.flags & CHUNK_LAST ? 0 : said->offset + chunk.length;
  said->message += chunk.flags & CHUNK_LAST;
}

void say_raw(struct remote *remote, const struct step *step)
{
  uint8_t bytes[8];
  store_be32(bytes, step->b);
  store_be32(bytes + 4, step->c);
  remote_give_up(remote);
  scene->wild = true;
  remote_say(remote, bytes, 1 + step->length % sizeof bytes);
}
