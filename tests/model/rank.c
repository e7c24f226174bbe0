/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's calls, like NCCL's, and their required results. */
#include <stdlib.h>
#include <string.h>

#include "harp/stack/bytes.h"
#include "tests/model/links.h"

#define CLOSE_WAITS_NS (LINK_DRAIN_MS * 1000000ull)

enum { UNTOUCHED = 0xee, PATTERN = 65536 };

static const struct process_api *api_of(const struct line *line, unsigned kind)
{
  return world.sides[role_side(line, kind)].api;
}

/* Lines use the devices in turn. */
static int device_of(const struct line *line, unsigned kind)
{
  return (int)(line->number % world.sides[role_side(line, kind)].setup.nics);
}

static const char *role_name(unsigned kind) { return kind == SENDER ? "sender" : "receiver"; }

/* --- Excuses --- */

void line_excuse(struct line *line, const char *why)
{
  if (line->used && !line->excuse) {
    tell("line %u is excused: %s", line->number, why);
    line->excuse = why;
  }
}

void excuse_all(const char *why)
{
  for (unsigned i = 0; i < LINES; i++) {
    line_excuse(&world.lines[i], why);
  }
}

void excuse_opening(const char *why)
{
  for (unsigned i = 0; i < LINES; i++) {
    const struct role *roles = world.lines[i].roles;
    if (roles[SENDER].state == ROLE_OPENING || roles[RECEIVER].state == ROLE_OPENING) {
      line_excuse(&world.lines[i], why);
    }
  }
}

/* Returns true if the receiver may have taken a new connection of a flow that the sender has given
 * up since. It then has none until the next attempt, and a closed link makes no attempt. */
static bool gave_up_attempt(const struct net_link *link)
{
  for (unsigned i = 0; i < link->flow_count; i++) {
    const struct link_flow *flow = link->flows[i];
    uint32_t hello = atomic_load(&link->moves[i].hello_epoch);
    bool tries = flow && (flow->candidate || atomic_load(&link->moves[i].step) != MOVE_NONE);
    if (flow && hello > flow->connected_epoch && !(tries && hello == flow->epoch)) {
      return true;
    }
  }
  return false;
}

void excuse_closing(void)
{
  for (unsigned i = 0; i < LINES; i++) {
    const struct role *roles = world.lines[i].roles;
    uint64_t closed = HARP_MAX(roles[SENDER].closed_at, roles[RECEIVER].closed_at);
    bool long_ago = closed && (nics_off_until() > closed + BORNE - TIMEOUT_NS / 6 ||
                               nics_cut_off_until() > closed + CLOSE_WAITS_NS / 2);
    if (long_ago || (nics_are_off() && roles[RECEIVER].state == ROLE_CLOSED)) {
      line_excuse(&world.lines[i], "an end was closed, which does not move or acknowledge");
    }
  }
}

/* Returns true if message `number` cannot complete, because the other rank closed without it. */
static bool left_out(const struct line *line, unsigned kind, unsigned number)
{
  const struct role *other = &line->roles[!kind];
  unsigned reached = kind == SENDER ? other->done : line->count;
  return other->state == ROLE_CLOSED && number >= reached;
}

bool anything_excused(void)
{
  for (unsigned i = 0; i < LINES; i++) {
    const struct line *line = &world.lines[i];
    if (line->excuse || left_out(line, SENDER, line->count ? line->count - 1 : 0) ||
        (line->roles[RECEIVER].wanted > line->count && left_out(line, RECEIVER, line->count))) {
      return true;
    }
  }
  return false;
}

#define AT_ONCE (TIMEOUT_NS / 4)

/* Checks that a receive without a message fails promptly. */
static void check_prompt(const struct line *line, unsigned number)
{
  const struct role *role = &line->roles[RECEIVER];
  const struct side *side = &world.sides[role_side(line, RECEIVER)];
  uint64_t closed = line->roles[SENDER].closed_at;
  uint64_t since = HARP_MAX(role->posts[number % LINK_REQUESTS].since, role->last_done);
  since = HARP_MAX(since, HARP_MAX(closed, world.disturbed_until));
  since = HARP_MAX(since, side->away_until);
  /* A closed end does not move. After an outage its last frames wait for the RTO, which a held
   * worker may have made seconds long. */
  if (nics_off_until() <= closed && world.now > since + AT_ONCE) {
    wrong("line %u: a receive failed only %llu ms after the sender had closed", line->number,
          (unsigned long long)((world.now - since) / 1000000));
  }
}

static void role_fails(struct line *line, unsigned kind, unsigned number, int error,
                       const char *call)
{
  struct role *role = &line->roles[kind];
  tell("line %u: %s's %s of message %u: %s", line->number, role_name(kind), call, number,
       strerror(-error));
  if (!line->excuse && !left_out(line, kind, number)) {
    wrong("line %u: %s's %s of message %u fails although nothing was wrong: %s", line->number,
          role_name(kind), call, number, strerror(-error));
  }
  if (!line->excuse && kind == RECEIVER) {
    check_prompt(line, number);
  }
  role->state = ROLE_FAILED;
}

/* --- Messages --- */

/* Returns bytes that only this message has, in this order. */
static const uint8_t *message_bytes(const struct line *line, unsigned number)
{
  static uint8_t pattern[PATTERN + MESSAGE_MAX];
  if (!pattern[0]) {
    struct sim_random random = random_stream(1, 1);
    for (unsigned i = 0; i < sizeof pattern; i++) {
      pattern[i] = (uint8_t)(1 + random_below(&random, 255));
    }
  }
  struct sim_random at = random_stream(number, line->number);
  return pattern + random_below(&at, PATTERN);
}

static void take_back(struct post *post)
{
  free(post->data);
  post->data = NULL;
  post->request = NULL;
}

static void check_received(const struct line *line, const struct post *post, unsigned number,
                           size_t size)
{
  if (number >= line->count) {
    wrong("line %u: message %u is received but was not sent", line->number, number);
  }
  if (size != line->sizes[number]) {
    wrong("line %u: message %u has %zu bytes, received as %zu", line->number, number,
          line->sizes[number], size);
  }
  if (memcmp(post->data, message_bytes(line, number), size) != 0) {
    wrong("line %u: message %u is received with other bytes", line->number, number);
  }
  for (size_t i = size; i < post->size + GUARD; i++) {
    if (post->data[i] != UNTOUCHED) {
      wrong("line %u: message %u: byte %zu after its end was changed", line->number, number, i);
    }
  }
}

static void test_post(struct line *line, unsigned kind, unsigned number)
{
  struct role *role = &line->roles[kind];
  struct post *post = &role->posts[number % LINK_REQUESTS];
  size_t size = 0;
  int done;
  int error = api_of(line, kind)->test(post->request, &done, &size);
  if (error) {
    role_fails(line, kind, number, error, "test");
    post->request = NULL; /* the link may use the memory until it is closed */
  } else if (done) {
    if (kind == RECEIVER) {
      check_received(line, post, number, size);
    }
    take_back(post);
    tell("line %u: message %u is %s", line->number, number, kind == SENDER ? "sent" : "received");
    role->done++;
    role->last_done = world.now;
  }
}

static void test_all(struct line *line, unsigned kind)
{
  struct role *role = &line->roles[kind];
  unsigned first = role->posted > LINK_REQUESTS ? role->posted - LINK_REQUESTS : 0;
  for (unsigned i = first; i < role->posted; i++) {
    if (role->posts[i % LINK_REQUESTS].request) {
      test_post(line, kind, i);
    }
  }
}

unsigned role_open_posts(const struct role *role)
{
  unsigned open = 0;
  for (unsigned i = 0; i < LINK_REQUESTS; i++) {
    open += role->posts[i].request != NULL;
  }
  return open;
}

static int post_message(struct line *line, unsigned kind, struct post *post)
{
  struct role *role = &line->roles[kind];
  unsigned number = role->posted;
  const struct process_api *api = api_of(line, kind);
  bool known = number < line->count;
  size_t size = known ? line->sizes[number] : MESSAGE_MAX;
  *post = (struct post){.data = malloc(size + GUARD), .size = size, .since = world.now};
  if (!post->data) {
    abort();
  }
  memset(post->data, UNTOUCHED, size + GUARD);
  if (kind == SENDER) {
    memcpy(post->data, message_bytes(line, number), size);
    return api->isend(role->link, post->data, size, NULL, &post->request);
  }
  return api->irecv(role->link, post->data, size, NULL, NET_COMPLETION_NEEDED, &post->request);
}

static void post_wanted(struct line *line, unsigned kind)
{
  struct role *role = &line->roles[kind];
  unsigned wanted = kind == SENDER ? line->count : role->wanted;
  while (role->state == ROLE_OPEN && role->posted < wanted) {
    struct post *post = &role->posts[role->posted % LINK_REQUESTS];
    if (post->data) {
      return; /* all slots are in use */
    }
    int error = post_message(line, kind, post);
    if (error || !post->request) {
      take_back(post);
    }
    if (error) {
      role_fails(line, kind, role->posted, error, kind == SENDER ? "isend" : "irecv");
    }
    if (!post->request) {
      return;
    }
    if (kind == SENDER && left_out(line, kind, role->posted)) {
      line_excuse(line, "its receiver had closed, and its sender sent more");
    }
    role->posted++;
  }
}

/* --- Open and close --- */

void line_open(struct line *line, unsigned from)
{
  line->from = from;
  line->used = true;
  int error =
      api_of(line, RECEIVER)->listen(device_of(line, RECEIVER), line->handle, &line->listener);
  if (error) {
    wrong("line %u: listen: %s", line->number, strerror(-error));
  }
  line->roles[SENDER].state = line->roles[RECEIVER].state = ROLE_OPENING;
  if (world_is_disturbed() || nics_off_until() > world.now + OPENING_NS) {
    line_excuse(line, "it was opened during a disturbance");
  }
}

static void ask(struct line *line, unsigned kind)
{
  struct role *role = &line->roles[kind];
  const struct process_api *api = api_of(line, kind);
  line->has_incoming |= line->listener && line->listener->incoming;
  int error = kind == SENDER ? api->connect(device_of(line, SENDER), line->handle, &role->link)
                             : api->accept(line->listener, &role->link);
  if (error) {
    role_fails(line, kind, 0, error, kind == SENDER ? "connect" : "accept");
  } else if (role->link) {
    tell("line %u: %s is open", line->number, role_name(kind));
    role->state = ROLE_OPEN;
    role->was_open = true;
    role->link->chunk_size = world.settings.chunk;
  }
}

static void close_role(struct line *line, unsigned kind)
{
  struct role *role = &line->roles[kind];
  bool outstanding = role_open_posts(role) > 0;
  tell("line %u: %s closes%s", line->number, role_name(kind),
       outstanding ? " with requests outstanding" : "");
  if (outstanding || role->state == ROLE_FAILED) {
    line_excuse(line, "an end was closed in the middle");
  }
  if (kind == RECEIVER && role->done < line->count) {
    line_excuse(line, "its receiver closed before all messages were received");
  }
  if (line->blackholed) {
    line_excuse(line, "the frames about a closed end are blackholed");
  }
  if (kind == SENDER) {
    line->count = role->posted; /* no rank waits for messages that were not posted */
  }
  role->state = ROLE_CLOSED;
  role->closed_at = world.now;
  excuse_closing();
  if (role->link) {
    struct net_link *link = role->link;
    if (kind == SENDER && gave_up_attempt(link)) {
      line_excuse(line, "its sender closed after it had given up a new connection");
    }
    role->link = NULL;
    api_of(line, kind)->close(link);
    if (world.now >= role->closed_at + CLOSE_WAITS_NS && nics_off_until() > role->closed_at) {
      line_excuse(line, "its close waited in vain during an outage");
    }
  }
  for (unsigned i = 0; i < LINK_REQUESTS; i++) {
    take_back(&role->posts[i]);
  }
}

static bool is_through(const struct line *line, unsigned kind)
{
  const struct role *role = &line->roles[kind];
  unsigned wanted = kind == SENDER ? line->count : role->wanted;
  return role_open_posts(role) == 0 && (role->state == ROLE_FAILED || role->done == wanted);
}

static void role_calls(struct line *line, unsigned kind)
{
  struct role *role = &line->roles[kind];
  if (role->state == ROLE_OPENING && !role->abandoned) {
    ask(line, kind);
  }
  if (role->state != ROLE_OPEN && role->state != ROLE_FAILED) {
    return;
  }
  if (role->wants_drop) {
    close_role(line, kind);
    return;
  }
  test_all(line, kind);
  post_wanted(line, kind);
  if (role->wants_close && is_through(line, kind)) {
    close_role(line, kind);
  }
}

void close_listeners(unsigned side)
{
  for (unsigned i = 0; i < LINES; i++) {
    struct line *line = &world.lines[i];
    if (line->listener && role_side(line, RECEIVER) == side) {
      struct net_listener *listener = line->listener;
      line->listener = NULL;
      if (line->roles[RECEIVER].state == ROLE_OPENING) {
        line->roles[RECEIVER].state = ROLE_CLOSED;
      }
      api_of(line, RECEIVER)->close_listener(listener);
    }
  }
}

/* Returns true if all roles of a side's rank are closed. */
static bool has_closed(unsigned side)
{
  for (unsigned i = 0; i < LINES; i++) {
    for (unsigned kind = 0; kind < ROLES; kind++) {
      const struct line *line = &world.lines[i];
      unsigned state = line->roles[kind].state;
      if (role_side(line, kind) == side && state != ROLE_NONE && state != ROLE_CLOSED) {
        return false;
      }
    }
  }
  return true;
}

/* The last frames of a process that ends may be lost. */
static void excuse_ended(void)
{
  if (nics_are_off()) {
    excuse_all("a process ended during an outage");
  }
}

static void end_process(unsigned number)
{
  struct side *side = &world.sides[number];
  tell("%c ends", 'a' + (char)number);
  close_listeners(number);
  excuse_ended();
  side_ends(side);
  excuse_ended();
}

void rank_calls(unsigned side)
{
  for (unsigned i = 0; i < LINES && !world.over; i++) {
    struct line *line = &world.lines[i];
    for (unsigned kind = 0; kind < ROLES && line->used; kind++) {
      if (role_side(line, kind) == side) {
        role_calls(line, kind);
      }
    }
  }
  if (world.sides[side].wants_end && has_closed(side)) {
    end_process(side);
  }
}

/* The next call of connect removes links that no rank will ask for again. */
void rank_connects_nowhere(unsigned side)
{
  uint8_t handle[NET_HANDLE_SIZE] = {0};
  struct net_link *link;
  if (world.sides[side].api->connect(0, handle, &link) == 0) {
    wrong("%c connects to an invalid handle", 'a' + (char)side);
  }
}

void rank_killed(unsigned side)
{
  excuse_all("a process was killed");
  world.sides[side].gone = true;
  for (unsigned i = 0; i < LINES; i++) {
    struct line *line = &world.lines[i];
    for (unsigned kind = 0; kind < ROLES && line->used; kind++) {
      struct role *role = &line->roles[kind];
      if (role_side(line, kind) == side && role->state != ROLE_CLOSED) {
        close_role(line, kind); /* frees its memory; the peer gets no frame */
      }
    }
  }
  close_listeners(side);
}
