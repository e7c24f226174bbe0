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
#include <string.h>
#include <time.h>

#include "harp/stack/pool.h"
#include "harp/stack/stack_state.h"
#include "tests/fuzz/link_scene.h"

enum {
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
  STEP_HANDSHAKE,
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
  STEP_DEREGISTER,
  STEP_CLOSE_LISTENER,
  STEP_SETTINGS,
  STEP_REFUSE,
  STEP_TALK, /* whole messages, one after another */
  STEP_KINDS
};

struct scene *scene;

static size_t memory_at_rest; /* of a process without link and listener */

/* --- The linker redirects this call here (--wrap) --- */

int __wrap_nanosleep(const struct timespec *time, struct timespec *left);

int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
  host_sleep((uint64_t)time->tv_sec * NS_PER_S + (uint64_t)time->tv_nsec);
  return 0;
}

/* --- One step --- */

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
  case STEP_DEREGISTER: deregister(line, step->b); break;
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
  case STEP_HANDSHAKE: say_hello_or_welcome(remote, step); break;
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
  if (kind == STEP_PUSH || kind == STEP_HANDSHAKE || kind == STEP_CHUNK || kind == STEP_PAYLOAD) {
    push(remote, step);
  }
  host_poll();
}

/* --- Checks after every step --- */

static void check_line(const struct line *line)
{
  if (!line->link || link_ended(line->link)) {
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
  FUZZ_EXPECT(arena_held() <= memory_at_rest + scene->posted_bytes + LINKS_MEMORY);
}

/* --- Start and end --- */

static void push_handshake(struct remote *remote, const struct step *step)
{
  say_hello_or_welcome(remote, step);
  push(remote, step);
  host_poll();
  remote_push(remote, 0, 32768, REMOTE_CHECKED);
  host_poll();
}

/* Memory that a process only writes. */
static void skip_scratch(void)
{
  const struct harp_statfile *file = &scene->host->transport->home->engine->statfile;
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
      .callers_poll = true,
      .max_connections = 24,
      .packets = 24,
      .rcvbuf = 24 << 10,
  };
  uint8_t handle[HANDLE_SIZE];
  char why[200];
  scene = calloc(1, sizeof *scene);
  scene->remotes = remotes_create();
  scene->host = host_create(&setup, 1000 * NS_PER_S, remotes_receive);
  skip_scratch();
  memory_at_rest = arena_held();
  FUZZ_EXPECT(net_listen(0, handle, &scene->listener) == 0);
  FUZZ_EXPECT(handle_read(&scene->handle, handle, why, sizeof why) == 0);
  for (int i = 0; i < IDS; i++) {
    scene->conversations[i].id = 0x1001u + (unsigned)i;
  }
  struct remote *remote = scene->remotes->all;
  for (unsigned i = 0; i < 2; i++, remote++) {
    struct step hello = {.kind = STEP_HANDSHAKE, .flags = (uint8_t)(1 << 2 | i)};
    FUZZ_EXPECT(remote_open(remote, i, scene->handle.ports[i], true));
    push_handshake(remote, &hello);
  }
  accept_one();
  FUZZ_EXPECT(scene->lines[0].link);
  connect_line(&scene->lines[1], 2);
  host_poll();
  for (unsigned i = 0; i < 2; i++, remote++) {
    struct step welcome = {.kind = STEP_HANDSHAKE};
    remote_answer(remote);
    host_poll();
    push_handshake(remote, &welcome);
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
    const struct nic_instance *part = &scene->host->transport->home->parts[i];
    *what = part->flows ? "flows" : part->used_ports ? "used ports" : NULL;
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
  FUZZ_EXPECT(scene->posted_bytes == 0 && scene->host->ports_taken == 0);
  FUZZ_EXPECT(!scene->host->transport->links);
  FUZZ_EXPECT(arena_held() == memory_at_rest);
}

const struct steps_target steps_target = {
    .most = 64, .set_up = set_up, .step = one_step, .end = end};
