/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The links of a group: one for each direction, peer and use. A link opens when it is first used.
 * The connecting rank says in the first message who it is, because a listener accepts all peers.
 *
 * Messages of up to LINK_SHORT bytes pass through registered memory of the link. Longer ones use
 * the caller's memory, which is registered for one operation.
 *
 * Thread: the one that drives the group; link_staging and links_get: any.
 */
#ifndef HARP_COLLECTIVES_LINKS_H
#define HARP_COLLECTIVES_LINKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "harp/collectives/collectives.h"

/* The step of a link's first message, which the driver ignores. */
enum { LINK_HELLO = -2 };

enum { LINK_HANDLE = 128 }; /* bytes of a listener's handle: NCCL_NET_HANDLE_MAXSIZE */

enum link_use { LINK_COLLECTIVE, LINK_P2P, LINK_USES };

enum {
  LINK_SHORT = 32768,   /* bytes; HARP copies messages up to this size, too */
  LINK_MESSAGES = 8,    /* outstanding messages */
  LINK_SLICE = 1 << 20, /* bytes of a staged message at most */
  LINK_STAGED = 4,      /* staged messages; fewer than LINK_MESSAGES */
  LINK_LONG = 1 << 30,  /* bytes of a message at most: plugins count some sizes in an int */
};

/* A message that the plugin has accepted. */
struct link_message {
  void *request;
  void *owner;    /* the caller's */
  int32_t step;   /* the caller's */
  void *deliver;  /* receive of a short message: where its bytes go */
  size_t bytes;   /* expected */
  bool registers; /* it uses a registration of the caller's memory */
};

struct registration {
  struct registration *next;
  const uint8_t *data;
  size_t bytes;
  void *mhandle;
};

struct link {
  void *comm;           /* NULL: not open */
  void *connect_handle; /* connect's copy of the handle, while it is not done */
  bool sends;
  enum link_use use;
  int peer;
  uint8_t *staging, *shorts; /* memory of staged messages, and of short ones */
  void *short_mhandle;
  void *staging_mhandle; /* NULL: no message was staged yet. Some ports pin registered memory */
  struct registration *registrations;
  struct link_message messages[LINK_MESSAGES];
  unsigned posted, done; /* messages since the link opened */
};

/* An accepted link before its hello: its peer and its use are unknown. */
struct unidentified;

struct links {
  int rank, ranks, device;
  void *listener;
  uint8_t
      *handles; /* of all ranks, HARP_HANDLE bytes each, which begin with that of the listener */
  struct link *all; /* see links_get */
  uint8_t *memory;  /* of all links; unused pages cost nothing */
  struct unidentified *unidentified;
};

/* Listens. handle: receives LINK_HANDLE bytes. 0, or -1 with a sentence. */
int links_init(struct links *links, int rank, int ranks, int local, void *handle, char *error);
/* Ends all use of user memory, without waiting. Closes the links with messages under way. */
void links_leave_memory(struct links *links);
/* Closes everything. User memory is not touched afterwards. May block for seconds, until the peers
 * have acknowledged the last messages. */
void links_close(struct links *links);
void links_free(struct links *links);

struct link *links_get(struct links *links, enum link_use use, bool sends, int peer);

/* Opens the link a little further. 1: open; 0: not yet; -1: *result says why not. */
int link_open(struct links *links, struct link *link, int *result);

/* Memory for staged message `slot` (below LINK_STAGED), LINK_SLICE bytes. */
void *link_staging(struct link *link, int slot);

/* Registers memory of the caller's until link_forget, unless it is registered already. Later
 * messages may lie anywhere in it. 0, or -1: *result says why not. */
int link_register(struct link *link, void *data, size_t bytes, int *result);

/* Posts a message on an open link. size: of a receive, the most. staged: data lies in link_staging.
 * 1: posted; 0: not now; -1: *result says why not. */
int link_post(struct link *link, void *data, size_t bytes, bool staged, void *owner, int32_t step,
              int *result);

/* Takes the oldest message if it is done. *size: bytes that came, or were sent. 1, 0 or -1. */
int link_take(struct link *link, struct link_message *message, size_t *size, int *result);

/* Ends the registrations of the caller's memory. */
void link_forget(struct link *link);

#endif
