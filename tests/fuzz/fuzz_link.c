/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes links: the application's calls of the plugin, and an attacking peer with correct TCP. The
 * peer sends hellos, proofs, epochs and contradictory chunks, on any flow and in any order, also
 * without authentication, and closes at any point. An input finds an incoming link (line 0; remotes
 * 0 and 1 are its flows) and an outgoing one (line 1; remotes 2 and 3).
 *
 * These conditions always hold: a completed receive holds the message, and no byte after it is
 * changed. No request completes twice. The plugin does not access buffers that the application has
 * back. Without the peer every request ends. With all links closed no memory remains.
 */
#include "plugin/link/crc32c.h"
#include "tests/fuzz/remote.h"
#include "tests/sim/books.h"

enum {
  LINES = 4,
  IDS = 4,          /* ids of incoming links */
  CHUNK_SIZE = 700, /* of HARP's chunks; the messages here are small */
  UNTOUCHED = 0xee, /* fills a receive's buffer */
  BUFFER_MAX = 8192,
  TALK_MAX = LINK_REQUESTS + 8, /* most messages of a talk, */
  TALK_LENGTH = 16,             /* and their bytes */
  LINKS_MEMORY = 2 << 20,       /* bytes that links, flows and frames may use */
  MEMORY_FOR_THE_END = 2 << 20, /* bytes; closing links needs memory too */
  GONE_S = 60,                  /* until a request on a link without a peer ends */
  REST_S = 600,                 /* until the last connection is released */
};

enum operation {
  STEP_OPEN,
  STEP_ANSWER,
  STEP_GREET,
  STEP_CHUNK,
  STEP_PAYLOAD,
  STEP_RAW,
  STEP_PUSH,
  STEP_PUSH_ALL,
  STEP_END,
  STEP_TIME,
  STEP_WAIT,
  STEP_RECEIVE,
  STEP_SEND,
  STEP_TEST,
  STEP_CLOSE,
  STEP_ACCEPT,
  STEP_CONNECT,
  STEP_LOSE_MEMORY,
  STEP_CLOSE_LISTENER,
  STEP_SETTINGS,
  STEP_REFUSE,
  STEP_TALK, /* whole messages, one after another */
  STEP_KINDS
};

enum greeting_choice {
  ODD_WORD = 1,   /* a wrong token; a status; */
  WITH_EPOCH = 2, /* a hello's epoch; a welcome: any `received` */
  WRONG_BYTE = 4,
  WRONG_KEY = 8,
  CUT_OFF = 16,
  ODD_VERSIONS = 32,
  UNASKED = 64, /* without a challenge, or without a proof */
};

enum chunk_choice {
  ODD_MESSAGE = 1,
  ODD_OFFSET = 2,
  ODD_LENGTH = 4,
  HEADER_ALONE = 8,
  INTERRUPTS = 16, /* the previous chunk is incomplete */
  WRONG_SUM = 32,
};

struct step {
  uint8_t kind, target, choice, flags;
  uint16_t length, cut;
  uint32_t b, c;
};
_Static_assert(sizeof(struct step) == STEP_SIZE, "an input is a list of them");

struct post {
  struct net_request *request; /* NULL: ended */
  uint8_t *data;               /* NULL: returned to the application */
  uint32_t size;
  uint64_t message;
  struct net_region *region;
};

/* A link of the application. */
struct line {
  struct net_link *link; /* NULL: none, or connecting */
  bool connecting;
  uint8_t handle[HANDLE_SIZE];
  uint64_t posted;
  struct post posts[LINK_REQUESTS];
};

/* The peer's state of a link. */
struct conversation {
  uint64_t id, message, offset;
  bool odd;         /* chunks are out of order */
  uint64_t spoiled; /* 1 + number of a message with a chunk that has a wrong checksum */
};

static struct scene {
  struct host *host;
  struct remotes *remotes;
  struct net_listener *listener;
  struct handle handle; /* of the listener */
  struct line lines[LINES];
  struct conversation conversations[IDS + 1]; /* the last one has no link */
  size_t lent;                                /* bytes of posted buffers */
  bool wild;                                  /* data of unknown meaning was sent */
} *scene;

static size_t memory_at_rest; /* of a process without link and listener */

/* --- The application --- */

static void take_back(struct line *line, struct post *post)
{
  if (post->region) {
    net_deregister(line->link, post->region);
    post->region = NULL;
  }
  scene->lent -= post->size;
  free(post->data);
  post->data = NULL;
}

static struct conversation *conversation(uint64_t link)
{
  struct conversation *one = scene->conversations;
  while (one->id != link && one < scene->conversations + IDS) {
    one++;
  }
  return one;
}

static void check_received(const struct line *line, const struct post *post, size_t size)
{
  FUZZ_EXPECT(size <= post->size);
  FUZZ_EXPECT(scene->wild || post->message + 1 != conversation(line->link->id)->spoiled);
  FUZZ_EXPECT(scene->wild || memcmp(post->data, message_at(post->message, 0), size) == 0);
  for (size_t i = size; i < post->size; i++) {
    FUZZ_EXPECT(post->data[i] == UNTOUCHED);
  }
}

static void test_one(struct line *line, struct post *post)
{
  int done;
  size_t size = 0;
  int error = net_test(post->request, &done, &size);
  FUZZ_EXPECT(!error || !done);
  if (error || done) {
    post->request = NULL;
  }
  if (done && post->data) {
    if (line->link->sends) {
      FUZZ_EXPECT(size == post->size);
    } else {
      check_received(line, post, size);
    }
    take_back(line, post);
  }
}

/* Tests all requests; returns the number that have not ended. */
static unsigned test_line(struct line *line)
{
  unsigned open = 0;
  for (int i = 0; line->link && i < LINK_REQUESTS; i++) {
    if (line->posts[i].request) {
      test_one(line, &line->posts[i]);
      open += line->posts[i].request != NULL;
    }
  }
  return open;
}

static void post_one(struct line *line, bool to_send, uint32_t size, bool registered)
{
  struct post *post = &line->posts[line->posted % LINK_REQUESTS];
  uint8_t *data = line->link ? malloc(size) : NULL;
  struct net_region *region = NULL;
  struct net_request *request = NULL;
  if (!data) {
    return;
  }
  memset(data, UNTOUCHED, size);
  if (to_send) {
    memcpy(data, message_at(line->posted, 0), size);
  }
  if (registered) {
    net_register(line->link, data, size ? size : 1, NCCL_PTR_HOST, &region);
  }
  int error = (to_send ? net_isend(line->link, data, size, region, &request)
                       : net_irecv(line->link, data, size, region, &request));
  FUZZ_EXPECT(!error || !request);
  if (!request) {
    if (region) {
      net_deregister(line->link, region);
    }
    free(data);
    return;
  }
  FUZZ_EXPECT(!post->request && !post->data);
  *post = (struct post){request, data, size, line->posted++, region};
  scene->lent += size;
}

static void close_line(struct line *line)
{
  if (!line->link) {
    return;
  }
  net_close(line->link);
  for (int i = 0; i < LINK_REQUESTS; i++) {
    line->posts[i].region = NULL; /* the link has dropped it */
    if (line->posts[i].data) {
      take_back(line, &line->posts[i]);
    }
  }
  *line = (struct line){0};
}

static void be_linked(struct line *line, struct net_link *link)
{
  link->chunk_size = CHUNK_SIZE;
  line->link = link;
  line->connecting = false;
}

static void accept_one(void)
{
  struct net_link *link = NULL;
  struct line *line = scene->lines;
  if (!scene->listener || net_accept(scene->listener, &link) != 0 || !link) {
    return;
  }
  while (line < scene->lines + LINES && (line->link || line->connecting)) {
    line++;
  }
  if (line < scene->lines + LINES) {
    be_linked(line, link);
  } else {
    net_close(link);
  }
}

/* Begins a connect, or calls it again. */
static void connect_line(struct line *line, unsigned instances)
{
  struct net_link *link;
  if (line->link) {
    return;
  }
  if (!line->connecting) {
    struct handle handle = {.version_min = 1,
                            .version_max = 1,
                            .address = HOST_PEER,
                            .ports = {REMOTE_PORT, REMOTE_PORT + 1},
                            .instances = (uint8_t)instances,
                            .mtu = 1500};
    handle_write(&handle, line->handle);
    line->connecting = true;
  }
  int error = net_connect(0, line->handle, &link);
  FUZZ_EXPECT(!error || !link);
  if (error) {
    *line = (struct line){0};
  } else if (link) {
    be_linked(line, link);
  }
}

static void lose_memory(struct line *line, uint32_t which)
{
  struct post *post = &line->posts[which % LINK_REQUESTS];
  if (post->data && post->region) {
    take_back(line, post); /* the request must still end */
  }
}

static void close_listener(void)
{
  if (scene->listener) {
    net_close_listener(scene->listener);
    scene->listener = NULL;
  }
}

/* --- The peer's hellos and welcomes --- */

static const struct proof_key *key(void) { return &scene->host->transport->key; }

static void say_greeting(struct remote *remote, const struct step *step, uint8_t *bytes,
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
  remote->greeted += length;
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
    memcpy(remote->proof.challenge, remote->greeting, WELCOME_SIZE);
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
  say_greeting(remote, step, bytes, HELLO_SIZE);
  if (hello.epoch > 0 && (again || !key()->set)) {
    go_on(remote);
  }
}

static void check_proof(const struct remote *remote, const struct hello *hello)
{
  uint8_t said[HELLO_SIZE], proof[PROOF_SIZE];
  memcpy(said, remote->greeting + HELLO_SIZE, HELLO_SIZE);
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
  if (key()->set && remote->heard == HELLO_SIZE && !(step->choice & UNASKED)) {
    welcome.status = WELCOME_CHALLENGE;
    memset(welcome.proof, step->flags, PROOF_SIZE);
  }
  welcome_write(&welcome, bytes);
  if (welcome.status == WELCOME_CHALLENGE) {
    memcpy(remote->proof.hello, remote->greeting, HELLO_SIZE);
    memcpy(remote->proof.challenge, bytes, WELCOME_SIZE);
  } else if (key()->set && remote->heard == 2 * HELLO_SIZE) {
    check_proof(remote, &hello);
    prove(remote, step, PROOF_ACCEPTOR, bytes, WELCOME_SIZE, WELCOME_PROOF);
  }
  if (welcome.status == 0) {
    remote_reads(remote, &hello, welcome.received);
  }
  if (remote->greeted > 0 && remote->heard == HELLO_SIZE) {
    remote_give_up(remote); /* a second hello may be on its way */
  }
  say_greeting(remote, step, bytes, WELCOME_SIZE);
}

static void greet(struct remote *remote, const struct step *step)
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

/* --- The peer's chunks --- */

static int32_t offset(uint32_t word) { return (int32_t)(int16_t)word * (1 << (word >> 16 & 15)); }

/* Sends up to `most` more bytes of the chunk, and the trailer after the last one. */
static void say_payload(struct remote *remote, uint32_t most)
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

static void say_chunk(struct remote *remote, const struct step *step)
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
    said->spoiled = chunk.message + 1;
  }
  said->offset = chunk.flags & CHUNK_LAST ? 0 : said->offset + chunk.length;
  said->message += chunk.flags & CHUNK_LAST;
}

/* Returns enum remote_choice from four bits of the target's number. */
static unsigned pushed_how(const struct step *step)
{
  return step->target >> 5 | (step->target & 16 ? REMOTE_UNACKED : 0);
}

/* Sends small messages, enough to reuse all slots of a link. */
static void talk(struct remote *remote, struct line *line, const struct step *step)
{
  struct step chunk = *step;
  chunk.flags = CHUNK_LAST | CHUNK_TRAILER;
  chunk.length %= TALK_LENGTH;
  for (int i = 0; i < step->flags % TALK_MAX; i++) {
    post_one(line, false, TALK_LENGTH, false);
    say_chunk(remote, &chunk);
    remote_push(remote, step->cut, 32768, pushed_how(step));
    host_poll();
    test_line(line);
  }
}

static void say_raw(struct remote *remote, const struct step *step)
{
  uint8_t bytes[8];
  store_be32(bytes, step->b);
  store_be32(bytes + 4, step->c);
  remote_give_up(remote);
  scene->wild = true;
  remote_say(remote, bytes, 1 + step->length % sizeof bytes);
}

/* --- One step --- */

static void push(struct remote *remote, const struct step *step)
{
  remote_push(remote, step->cut, step->kind % STEP_KINDS == STEP_PUSH ? step->length : 32768,
              pushed_how(step));
}

/* Steps of the application and of the hosts' environment. */
static void ask(const struct step *step)
{
  struct line *line = &scene->lines[step->target % LINES];
  switch (step->kind % STEP_KINDS) {
  case STEP_TIME: scene->host->now += (uint64_t)step->b << step->flags % 10; break;
  case STEP_WAIT:
    for (unsigned i = 0; i <= step->flags % 32u; i++) {
      host_advance(NS_PER_S);
    }
    break;
  case STEP_RECEIVE: post_one(line, false, step->length % BUFFER_MAX, step->choice & 1); break;
  case STEP_SEND: post_one(line, true, step->length % BUFFER_MAX, step->choice & 1); break;
  case STEP_TEST: test_line(line); break;
  case STEP_CLOSE: close_line(line); break;
  case STEP_ACCEPT: accept_one(); break;
  case STEP_CONNECT: connect_line(line, 1 + (step->choice & 1)); break;
  case STEP_LOSE_MEMORY: lose_memory(line, step->b); break;
  case STEP_CLOSE_LISTENER: close_listener(); break;
  case STEP_SETTINGS:
    scene->host->transport->key.set = step->flags & 1;
    scene->host->transport->checksum = step->flags & 2;
    break;
  default: scene->host->refuses = step->flags;
  }
}

static void run(const struct step *step)
{
  struct remote *remote = &scene->remotes->all[step->target % REMOTES];
  unsigned kind = step->kind % STEP_KINDS;
  switch (kind) {
  case STEP_OPEN:
    remote_open(remote, step->choice & 1, scene->handle.ports[step->choice & 1], step->choice & 2);
    break;
  case STEP_ANSWER: remote_answer(remote); break;
  case STEP_GREET: greet(remote, step); break;
  case STEP_CHUNK: say_chunk(remote, step); break;
  case STEP_PAYLOAD: say_payload(remote, step->length); break;
  case STEP_RAW: say_raw(remote, step); break;
  case STEP_PUSH_ALL:
    for (int i = 0; i < REMOTES; i++) {
      push(&scene->remotes->all[i], step);
      host_poll();
    }
    break;
  case STEP_END: remote_end(remote, step->flags); break;
  case STEP_TALK: talk(remote, &scene->lines[step->b % LINES], step); break;
  case STEP_PUSH: break;
  default: ask(step);
  }
  if (kind == STEP_PUSH || kind == STEP_GREET || kind == STEP_CHUNK || kind == STEP_PAYLOAD) {
    push(remote, step);
  }
  host_poll();
}

/* --- Checks after every step --- */

static void check_line(const struct line *line)
{
  if (!line->link || atomic_load(&line->link->error)) {
    return; /* its requests end at their next test */
  }
  for (int i = 0; i < LINK_REQUESTS; i++) {
    bool in_use = atomic_load(&line->link->requests[i].state) != REQUEST_FREE;
    FUZZ_EXPECT(in_use == (line->posts[i].request != NULL));
  }
}

static void check(void)
{
  for (int i = 0; i < LINES; i++) {
    check_line(&scene->lines[i]);
  }
  FUZZ_EXPECT(arena_held() <= memory_at_rest + scene->lent + LINKS_MEMORY);
}

/* --- Start and end --- */

static void greeted(struct remote *remote, const struct step *step)
{
  greet(remote, step);
  push(remote, step);
  host_poll();
  remote_push(remote, 0, 32768, REMOTE_CHECKED);
  host_poll();
}

/* Memory that a process only writes. */
static void skip_scratch(void)
{
  const struct harp_statfile *file = &scene->host->transport->engine->statfile;
  arena_skip(harp_statfile_flow(file, 0), HARP_STAT_FLOWS * sizeof(struct harp_stat_flow));
  for (unsigned i = 0; i < HOST_INSTANCES; i++) {
    struct harp_instance *instance = host_instance(i);
    arena_skip(instance->trace.records, HARP_TRACE_ENTRIES * sizeof *instance->trace.records);
    arena_skip(instance->stack->linear, sizeof instance->stack->linear);
  }
}

static void set_up(void)
{
  static const struct host_setup setup = {
      .address = HOST_ADDRESS,
      .instances = HOST_INSTANCES,
      .flows = 2,
      .timeout_ms = HOST_TIMEOUT_MS,
      .offloads = HARP_OFFLOAD_TX_CHECKSUM | HARP_OFFLOAD_TSO | HARP_OFFLOAD_RX_CHECKSUM,
      .scarce = true,
      .max_connections = 24,
      .packets = 24,
      .rcvbuf = 24 << 10,
  };
  uint8_t handle[HANDLE_SIZE];
  char why[200];
  scene = calloc(1, sizeof *scene);
  scene->remotes = remotes_create();
  scene->host = host_create(&setup, 1000 * NS_PER_S, remotes_hear);
  skip_scratch();
  memory_at_rest = arena_held();
  FUZZ_EXPECT(net_listen(0, handle, &scene->listener) == 0);
  FUZZ_EXPECT(handle_read(&scene->handle, handle, why, sizeof why) == 0);
  for (int i = 0; i < IDS; i++) {
    scene->conversations[i].id = 0x1001u + (unsigned)i;
  }
  struct remote *remote = scene->remotes->all;
  for (unsigned i = 0; i < 2; i++, remote++) {
    struct step hello = {.kind = STEP_GREET, .flags = (uint8_t)(1 << 2 | i)};
    FUZZ_EXPECT(remote_open(remote, i, scene->handle.ports[i], true));
    greeted(remote, &hello);
  }
  accept_one();
  FUZZ_EXPECT(scene->lines[0].link);
  connect_line(&scene->lines[1], 2);
  host_poll();
  for (unsigned i = 0; i < 2; i++, remote++) {
    struct step welcome = {.kind = STEP_GREET};
    remote_answer(remote);
    host_poll();
    greeted(remote, &welcome);
  }
  connect_line(&scene->lines[1], 2);
  FUZZ_EXPECT(scene->lines[1].link);
}

static void one_step(const void *bytes)
{
  struct step step;
  if (arena_left() < MEMORY_FOR_THE_END) {
    return;
  }
  memcpy(&step, bytes, sizeof step);
  run(&step);
  check();
}

/* Without the peer every request ends, and every connect. */
static void end_requests(void)
{
  uint64_t limit = scene->host->now + GONE_S * NS_PER_S;
  unsigned open = 1;
  while (open > 0) {
    open = 0;
    for (int i = 0; i < LINES; i++) {
      if (scene->lines[i].connecting) {
        connect_line(&scene->lines[i], 1);
      }
      open += test_line(&scene->lines[i]) + scene->lines[i].connecting;
    }
    FUZZ_EXPECT(scene->host->now < limit);
    host_advance(NS_PER_S);
  }
}

static bool at_rest(const char **what)
{
  const struct harp_pool *pool;
  *what = NULL;
  for (unsigned i = 0; i < HOST_INSTANCES && !*what; i++) {
    const struct transport_instance *part = &scene->host->transport->parts[i];
    *what = part->flows ? "flows" : part->retired ? "used ports" : NULL;
    *what = *what ? *what : stack_in_use(host_stack(i), &pool);
  }
  return !*what;
}

static void end(void)
{
  const char *what;
  scene->remotes->away = true;
  scene->host->refuses = 0;
  end_requests();
  for (int i = 0; i < LINES; i++) {
    close_line(&scene->lines[i]);
  }
  close_listener();
  uint64_t limit = scene->host->now + REST_S * NS_PER_S;
  while (!at_rest(&what)) {
    if (scene->host->now > limit) {
      fuzz_wrong(__FILE__, __LINE__, what);
    }
    host_rest();
  }
  FUZZ_EXPECT(scene->lent == 0 && scene->host->ports_taken == 0);
  FUZZ_EXPECT(!scene->host->transport->links);
  FUZZ_EXPECT(arena_held() == memory_at_rest);
}

const struct steps_target steps_target = {
    .most = 64, .set_up = set_up, .step = one_step, .end = end};
