/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/p2p.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harp/collectives/group.h"
#include "harp/collectives/unexpected.h"

struct header {
  uint64_t bytes; /* of payload */
  int32_t tag;
  uint32_t follows; /* 1: the payload is the next message */
};

enum { STORED_SHARE = 8 }; /* at most 1/STORED_SHARE of the host's memory may hold early messages */

/* The steps of link messages. */
enum { HEADER, PAYLOAD };

enum { SHORT_PAYLOAD = LINK_SHORT - sizeof(struct header) };

/* The messages of a payload that follows its header have LINK_LONG bytes each, and the last one has
 * the rest. */
static size_t next_part(size_t bytes, size_t done)
{
  return bytes - done < LINK_LONG ? bytes - done : LINK_LONG;
}

struct outbox {
  struct op_list sends;  /* not fully posted */
  struct op_list posted; /* on the link, in their order */
  bool header_sent;      /* of the first one */
  uint8_t *packed;       /* header and short payload, LINK_SHORT bytes */
};

struct inbox {
  uint8_t *packed;            /* the header's message, LINK_SHORT bytes */
  bool reading;               /* a receive is posted on the link */
  struct harp_op *receive;    /* gets the payload of the next message; NULL: none */
  struct unexpected *partial; /* gets it instead; NULL: none */
  size_t filled;              /* bytes of that payload that have come */
  struct unexpected_list unexpected;
};

bool p2p_init(struct p2p *p2p, int ranks)
{
  p2p->outboxes = calloc((size_t)ranks, sizeof *p2p->outboxes);
  p2p->inboxes = calloc((size_t)ranks, sizeof *p2p->inboxes);
  p2p->packed = malloc(2 * (size_t)ranks * LINK_SHORT);
  p2p->stored_most = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) /
                     STORED_SHARE;
  op_list_init(&p2p->receives);
  if (!p2p->outboxes || !p2p->inboxes || !p2p->packed) {
    return false;
  }
  for (int rank = 0; rank < ranks; rank++) {
    op_list_init(&p2p->outboxes[rank].sends);
    op_list_init(&p2p->outboxes[rank].posted);
    p2p->outboxes[rank].packed = p2p->packed + 2 * (size_t)rank * LINK_SHORT;
    p2p->inboxes[rank].packed = p2p->outboxes[rank].packed + LINK_SHORT;
  }
  return true;
}

void p2p_free(struct p2p *p2p, int ranks)
{
  for (int rank = 0; p2p->inboxes && rank < ranks; rank++) {
    struct unexpected_list *list = &p2p->inboxes[rank].unexpected;
    while (list->first) {
      unexpected_drop(list, list->first);
    }
  }
  free(p2p->packed);
  free(p2p->outboxes);
  free(p2p->inboxes);
}

void p2p_each(struct p2p *p2p, int ranks, void (*visit)(struct harp_op *, void *), void *user)
{
  for (struct harp_op *op = p2p->receives.first; op; op = op->next) {
    visit(op, user);
  }
  for (int rank = 0; rank < ranks; rank++) {
    for (struct harp_op *op = p2p->outboxes[rank].sends.first; op; op = op->next) {
      visit(op, user);
    }
    for (struct harp_op *op = p2p->outboxes[rank].posted.first; op; op = op->next) {
      visit(op, user);
    }
    if (p2p->inboxes[rank].receive) {
      visit(p2p->inboxes[rank].receive, user);
    }
  }
}

static void drain(struct op_list *from, struct op_list *to)
{
  while (from->first) {
    op_list_add(to, op_list_remove(from, &from->first));
  }
}

void p2p_drain(struct p2p *p2p, int ranks, struct op_list *to)
{
  drain(&p2p->receives, to);
  for (int rank = 0; rank < ranks; rank++) {
    drain(&p2p->outboxes[rank].sends, to);
    drain(&p2p->outboxes[rank].posted, to);
    if (p2p->inboxes[rank].receive) {
      op_list_add(to, p2p->inboxes[rank].receive);
    }
    p2p->inboxes[rank].receive = NULL;
  }
  p2p->busy = 0;
}

/* --- Sending --- */

static bool fails(struct harp_group *group, const struct harp_op *op, const struct link *link,
                  int call, int result)
{
  if (call < 0) {
    group_link_failed(group, op, link->peer, link->sends, result);
  }
  return call < 0;
}

/* Posts the header's message, with the payload if it is short. */
static int post_header(struct outbox *outbox, struct link *link, struct harp_op *op, int *result)
{
  struct header header = {.bytes = op->bytes, .tag = op->tag, .follows = op->bytes > SHORT_PAYLOAD};
  size_t payload = header.follows ? 0 : op->bytes;
  memcpy(outbox->packed, &header, sizeof header);
  if (payload) {
    memcpy(outbox->packed + sizeof header, op->data, payload);
  }
  int posted = link_post(link, outbox->packed, sizeof header + payload, false, op, HEADER, result);
  if (posted > 0) {
    outbox->header_sent = true;
  }
  return posted;
}

/* One registered message at a time, so that its registration can end with it. */
static int post_payload(struct link *link, struct harp_op *op, int *result)
{
  int posted = 1;
  while (posted > 0 && op->bytes > SHORT_PAYLOAD && op->posted < op->bytes) {
    uint8_t *data = (uint8_t *)op->data + op->posted;
    size_t bytes = next_part(op->bytes, op->posted);
    posted = link->registrations ? 0 : link_post(link, data, bytes, false, op, PAYLOAD, result);
    op->posted += posted > 0 ? bytes : 0;
  }
  return posted;
}

static int post_send(struct outbox *outbox, struct link *link, struct harp_op *op, int *result)
{
  if (!outbox->header_sent) {
    int posted = post_header(outbox, link, op, result);
    if (posted <= 0) {
      return posted;
    }
  }
  int posted = post_payload(link, op, result);
  if (posted > 0) {
    outbox->header_sent = false;
  }
  return posted;
}

static unsigned send_round(struct harp_group *group, int peer)
{
  struct outbox *outbox = &group->p2p.outboxes[peer];
  struct link *link = links_get(&group->links, LINK_P2P, true, peer);
  struct link_message message;
  size_t size;
  unsigned events = 0;
  int result = 0, call;
  while ((call = link_take(link, &message, &size, &result)) > 0) {
    struct harp_op *op = message.owner;
    events++;
    if (message.registers) { /* a short payload may end while a long one is under way */
      link_forget(link);
    }
    if (op && --op->parts_left == 0) {
      group->p2p.busy--;
      group_op_done(group, op_list_remove(&outbox->posted, &outbox->posted.first));
    }
  }
  if (fails(group, outbox->posted.first, link, call, result) || !outbox->sends.first) {
    return events;
  }
  call = link_open(&group->links, link, &result);
  while (call > 0 && outbox->sends.first) {
    call = post_send(outbox, link, outbox->sends.first, &result);
    if (call > 0) {
      op_list_add(&outbox->posted, op_list_remove(&outbox->sends, &outbox->sends.first));
      events++;
    }
  }
  fails(group, outbox->sends.first, link, call, result);
  return events;
}

/* --- Receiving --- */

static bool takes(const struct harp_op *receive, int peer, int tag)
{
  return (receive->peer == peer || receive->peer == HARP_ANY_RANK) && receive->tag == tag;
}

static struct harp_op **find_receive(struct p2p *p2p, int peer, int tag)
{
  struct harp_op **at = &p2p->receives.first;
  while (*at && !takes(*at, peer, tag)) {
    at = &(*at)->next;
  }
  return at;
}

/* false: the sizes differ, and the group has failed. */
static bool agree(struct harp_group *group, const struct harp_op *op, int peer, size_t bytes)
{
  if (op->bytes == bytes) {
    return true;
  }
  group_fail(group,
             "recv with tag %d expects %zu bytes, but rank %d on %s sends %zu: give both ranks "
             "tensors of the same size and type",
             op->tag, op->bytes, peer, group_name(group, peer), bytes);
  return false;
}

static void finish(struct harp_group *group, struct harp_op *op, int peer)
{
  op->source = peer;
  group_op_done(group, op);
}

static bool wanted(const struct p2p *p2p, int peer)
{
  for (const struct harp_op *op = p2p->receives.first; op; op = op->next) {
    if (op->peer == peer || op->peer == HARP_ANY_RANK) {
      return true;
    }
  }
  return false;
}

/* Whether a header is one of ours, and its payload of the right size. */
static bool is_valid(const struct header *header, size_t size)
{
  if (size < sizeof *header || header->follows > 1) {
    return false;
  }
  return header->follows ? size == sizeof *header : size - sizeof *header == header->bytes;
}

/* Stores a message that has no receive yet. Its payload comes with the header or in the next
 * message of the link. */
static void begin_unexpected(struct harp_group *group, int peer, const struct header *header)
{
  struct p2p *p2p = &group->p2p;
  struct inbox *inbox = &p2p->inboxes[peer];
  uint64_t cost = unexpected_cost(header->bytes);
  if (cost > p2p->stored_most - p2p->stored) {
    group_fail(group,
               "rank %d on %s sends a message of %llu bytes with tag %d, for which no receive is "
               "posted; early messages already take %llu of at most %llu bytes: post the receives "
               "in the order of the sends",
               peer, group_name(group, peer), (unsigned long long)header->bytes, header->tag,
               (unsigned long long)p2p->stored, (unsigned long long)p2p->stored_most);
    return;
  }
  struct unexpected *unexpected = unexpected_add(&inbox->unexpected, header->tag, header->bytes);
  p2p->stored += unexpected ? cost : 0;
  if (!unexpected) {
    group_fail(group, "no memory for a message of %zu bytes of rank %d on %s",
               (size_t)header->bytes, peer, group_name(group, peer));
  } else if (header->follows) {
    inbox->partial = unexpected;
    group->p2p.busy++;
  } else {
    memcpy(unexpected->data, inbox->packed + sizeof *header, header->bytes);
    unexpected->complete = true;
  }
}

/* Begins the receive at `at`. Its payload comes with the header or in the next message. */
static void begin_receive(struct harp_group *group, int peer, const struct header *header,
                          struct harp_op **at)
{
  struct inbox *inbox = &group->p2p.inboxes[peer];
  if (!agree(group, *at, peer, header->bytes)) {
    return;
  }
  struct harp_op *op = op_list_remove(&group->p2p.receives, at);
  if (header->follows) {
    inbox->receive = op;
    group->p2p.busy++;
  } else {
    memcpy(op->data, inbox->packed + sizeof *header, header->bytes);
    finish(group, op, peer);
  }
}

static void fail_unknown(struct harp_group *group, int peer)
{
  group_fail(group,
             "rank %d on %s sends a message that this HARP does not know: install the same "
             "version of HARP on all hosts",
             peer, group_name(group, peer));
}

/* Handles a header, and the payload if it is in the same message. */
static void take_header(struct harp_group *group, int peer, size_t size)
{
  struct header header;
  memcpy(&header, group->p2p.inboxes[peer].packed, sizeof header);
  if (!is_valid(&header, size)) {
    fail_unknown(group, peer);
    return;
  }
  struct harp_op **at = find_receive(&group->p2p, peer, header.tag);
  if (*at) {
    begin_receive(group, peer, &header, at);
  } else {
    begin_unexpected(group, peer, &header);
  }
}

/* Where the payload that comes belongs; *bytes: its size. */
static uint8_t *destination(const struct inbox *inbox, size_t *bytes)
{
  *bytes = inbox->receive ? inbox->receive->bytes : inbox->partial->bytes;
  return inbox->receive ? inbox->receive->data : inbox->partial->data;
}

/* A message of the payload has come. */
static void take_payload(struct harp_group *group, struct link *link, int peer, size_t size)
{
  struct inbox *inbox = &group->p2p.inboxes[peer];
  struct harp_op *op = inbox->receive;
  size_t bytes;
  destination(inbox, &bytes);
  link_forget(link);
  if (size != next_part(bytes, inbox->filled)) {
    fail_unknown(group, peer);
    return;
  }
  inbox->filled += size;
  if (inbox->filled < bytes) {
    return;
  }
  inbox->filled = 0;
  group->p2p.busy--;
  if (inbox->partial) {
    inbox->partial->complete = true;
  }
  inbox->receive = NULL;
  inbox->partial = NULL;
  if (op) {
    finish(group, op, peer);
  }
}

/* Gives unexpected messages to the receives that were posted later. */
static unsigned deliver_unexpected(struct harp_group *group, int peer)
{
  unsigned events = 0;
  struct inbox *inbox = &group->p2p.inboxes[peer];
  struct op_list *receives = &group->p2p.receives;
  for (struct harp_op **at = &receives->first; inbox->unexpected.first && *at;) {
    const struct harp_op *op = *at;
    struct unexpected *unexpected = NULL;
    if (op->peer == peer || op->peer == HARP_ANY_RANK) {
      unexpected = unexpected_find(&inbox->unexpected, op->tag);
    }
    if (!unexpected) {
      at = &(*at)->next;
      continue;
    }
    if (!agree(group, op, peer, unexpected->bytes)) {
      return events;
    }
    memcpy(op->data, unexpected->data, unexpected->bytes);
    group->p2p.stored -= unexpected_cost(unexpected->bytes);
    unexpected_drop(&inbox->unexpected, unexpected);
    finish(group, op_list_remove(receives, at), peer);
    events++;
  }
  return events;
}

static int post_read(struct inbox *inbox, struct link *link, int *result)
{
  if (!inbox->receive && !inbox->partial) {
    return link_post(link, inbox->packed, LINK_SHORT, false, NULL, HEADER, result);
  }
  size_t bytes;
  uint8_t *data = destination(inbox, &bytes) + inbox->filled;
  return link_post(link, data, next_part(bytes, inbox->filled), false, NULL, PAYLOAD, result);
}

/* An operation that needs the next message. */
static const struct harp_op *reader(const struct p2p *p2p, const struct inbox *inbox)
{
  return inbox->receive ? inbox->receive : p2p->receives.first;
}

static unsigned receive_round(struct harp_group *group, int peer)
{
  struct p2p *p2p = &group->p2p;
  struct inbox *inbox = &p2p->inboxes[peer];
  struct link *link = links_get(&group->links, LINK_P2P, false, peer);
  unsigned events = deliver_unexpected(group, peer);
  int result = 0;
  if (inbox->reading && !group->failed) {
    struct link_message message;
    size_t size;
    int call = link_take(link, &message, &size, &result);
    if (fails(group, reader(p2p, inbox), link, call, result) || call == 0) {
      return events;
    }
    inbox->reading = false;
    events++;
    if (message.step == PAYLOAD) {
      take_payload(group, link, peer, size);
    } else {
      take_header(group, peer, size);
    }
  }
  if (group->failed || !(inbox->receive || inbox->partial || wanted(p2p, peer))) {
    return events;
  }
  int call = link_open(&group->links, link, &result);
  if (call > 0) {
    call = post_read(inbox, link, &result);
  }
  if (!fails(group, reader(p2p, inbox), link, call, result) && call > 0) {
    inbox->reading = true;
  }
  return events;
}

/* --- Both --- */

void p2p_add(struct harp_group *group, struct harp_op *op)
{
  struct p2p *p2p = &group->p2p;
  if (op->kind == HARP_SEND) {
    op->parts_left = 1;
    if (op->bytes > SHORT_PAYLOAD) {
      op->parts_left += (unsigned)((op->bytes - 1) / LINK_LONG + 1);
    }
    p2p->busy++;
    op_list_add(&p2p->outboxes[op->peer].sends, op);
  } else {
    op_list_add(&p2p->receives, op);
  }
}

unsigned p2p_round(struct harp_group *group)
{
  unsigned events = 0;
  if (!group->p2p.busy && !group->p2p.receives.first) {
    return 0;
  }
  for (int peer = 0; peer < group->ranks && !group->failed; peer++) {
    if (peer == group->rank) {
      continue;
    }
    events += send_round(group, peer);
    if (!group->failed) {
      events += receive_round(group, peer);
    }
  }
  return events;
}
