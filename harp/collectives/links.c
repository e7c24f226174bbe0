/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/links.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "harp/collectives/net.h"

enum {
  STAGING = LINK_STAGED * LINK_SLICE,
  SHORTS = LINK_MESSAGES * LINK_SHORT,
  DIRECTIONS = 2,
};

#define HELLO_MAGIC 0x48435031u /* HCP1 */

/* The first message of each link. Ranks of a group have the same byte order. */
struct hello {
  uint32_t magic, rank, use;
};

struct unidentified {
  struct unidentified *next;
  void *comm, *mhandle, *request;
  struct hello hello;
};

static size_t link_count(const struct links *links)
{
  return (size_t)LINK_USES * DIRECTIONS * (size_t)links->ranks;
}

struct link *links_get(struct links *links, enum link_use use, bool sends, int peer)
{
  size_t row = (size_t)use * DIRECTIONS + (sends ? 0 : 1);
  return &links->all[row * (size_t)links->ranks + (size_t)peer];
}

static bool make_links(struct links *links)
{
  size_t staging = link_count(links) * STAGING, bytes = staging + link_count(links) * SHORTS;
  links->all = calloc(link_count(links), sizeof *links->all);
  links->handles = calloc((size_t)links->ranks, HARP_HANDLE);
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  links->memory = memory == MAP_FAILED ? NULL : memory;
  if (!links->all || !links->handles || !links->memory) {
    return false;
  }
  for (int i = 0; i < LINK_USES * DIRECTIONS * links->ranks; i++) {
    enum link_use use = i / links->ranks < DIRECTIONS ? LINK_COLLECTIVE : LINK_P2P;
    bool sends = i / links->ranks % DIRECTIONS == 0;
    *links_get(links, use, sends, i % links->ranks) = (struct link){
        .peer = i % links->ranks,
        .sends = sends,
        .use = use,
        .staging = links->memory + (size_t)i * STAGING,
        .shorts = links->memory + staging + (size_t)i * SHORTS,
    };
  }
  return true;
}

int links_init(struct links *links, int rank, int ranks, int local, void *handle, char *error)
{
  *links = (struct links){.rank = rank, .ranks = ranks, .device = local % net_devices()};
  if (!make_links(links)) {
    snprintf(error, HARP_ERROR, "no memory for a group of %d ranks", ranks);
    return -1;
  }
  ncclResult_t result = net_api()->listen(links->device, handle, &links->listener);
  if (result != ncclSuccess) {
    char why[512];
    net_take_warning(why, sizeof why);
    snprintf(error, HARP_ERROR, "%s cannot listen for the other ranks (%s): %s", net_api()->name,
             netapi_result_name(result), why);
    return -1;
  }
  return 0;
}

void link_forget(struct link *link)
{
  while (link->registrations) {
    struct registration *next = link->registrations->next;
    net_api()->deregister_memory(link->comm, link->registrations->mhandle);
    free(link->registrations);
    link->registrations = next;
  }
}

static void deregister(void *comm, void *mhandle)
{
  if (mhandle) {
    net_api()->deregister_memory(comm, mhandle);
  }
}

static void close_link(struct link *link)
{
  if (link->comm) {
    link_forget(link);
    deregister(link->comm, link->short_mhandle);
    deregister(link->comm, link->staging_mhandle);
    if (link->sends) {
      net_api()->close_send(link->comm);
    } else {
      net_api()->close_receive(link->comm);
    }
  }
  free(link->connect_handle);
  link->comm = link->short_mhandle = link->staging_mhandle = link->connect_handle = NULL;
  link->posted = link->done = 0;
}

void links_leave_memory(struct links *links)
{
  for (size_t i = 0; links->all && i < link_count(links); i++) {
    struct link *link = &links->all[i];
    if (link->done == link->posted) {
      link_forget(link);
    } else {
      close_link(link);
    }
  }
}

static void close_unidentified(struct unidentified *opened)
{
  deregister(opened->comm, opened->mhandle);
  if (opened->comm) {
    net_api()->close_receive(opened->comm);
  }
  free(opened);
}

void links_close(struct links *links)
{
  for (size_t i = 0; links->all && i < link_count(links); i++) {
    close_link(&links->all[i]);
  }
  while (links->unidentified) {
    struct unidentified *next = links->unidentified->next;
    close_unidentified(links->unidentified);
    links->unidentified = next;
  }
  if (links->listener) {
    net_api()->close_listener(links->listener);
  }
  links->listener = NULL;
}

void links_free(struct links *links)
{
  links_close(links);
  if (links->memory) {
    munmap(links->memory, link_count(links) * (STAGING + SHORTS));
  }
  free(links->all);
  free(links->handles);
}

void *link_staging(struct link *link, int slot)
{
  return link->staging + (size_t)slot * LINK_SLICE;
}

static void *short_message(const struct link *link, unsigned number)
{
  return link->shorts + (size_t)(number % LINK_MESSAGES) * LINK_SHORT;
}

static bool failed(ncclResult_t call, int *result)
{
  if (call != ncclSuccess) {
    *result = (int)call;
  }
  return call != ncclSuccess;
}

static bool register_shorts(struct link *link, int *result)
{
  return !failed(net_api()->register_memory(link->comm, link->shorts, SHORTS, &link->short_mhandle),
                 result);
}

static bool register_staging(struct link *link, int *result)
{
  return link->staging_mhandle ||
         !failed(
             net_api()->register_memory(link->comm, link->staging, STAGING, &link->staging_mhandle),
             result);
}

static int connect_link(struct links *links, struct link *link, int *result)
{
  if (!link->connect_handle) {
    if (!(link->connect_handle = malloc(LINK_HANDLE))) {
      *result = ncclSystemError;
      return -1;
    }
    memcpy(link->connect_handle, links->handles + (size_t)link->peer * HARP_HANDLE, LINK_HANDLE);
  }
  if (failed(net_api()->connect(links->device, link->connect_handle, &link->comm), result)) {
    return -1;
  }
  if (!link->comm) {
    return 0;
  }
  if (!register_shorts(link, result)) {
    return -1;
  }
  struct hello hello = {HELLO_MAGIC, (uint32_t)links->rank, (uint32_t)link->use};
  /* A new link has room for a message. */
  return link_post(link, &hello, sizeof hello, false, NULL, LINK_HELLO, result);
}

static int accept_one(struct links *links, int *result)
{
  void *comm = NULL;
  if (failed(net_api()->accept(links->listener, &comm), result)) {
    return -1;
  }
  if (!comm) {
    return 0;
  }
  struct unidentified *opened = calloc(1, sizeof *opened);
  if (!opened) {
    *result = ncclSystemError;
    net_api()->close_receive(comm);
    return -1;
  }
  opened->comm = comm;
  opened->next = links->unidentified;
  links->unidentified = opened;
  size_t size = sizeof opened->hello;
  if (failed(net_api()->register_memory(comm, &opened->hello, size, &opened->mhandle), result) ||
      failed(net_api()->irecv(comm, &opened->hello, size, opened->mhandle, &opened->request),
             result)) {
    return -1;
  }
  return 0;
}

/* Takes the link that the hello names. A link with a bad hello, or a second one, is closed. */
static int identify(struct links *links, struct unidentified *opened, size_t size, int *result)
{
  const struct hello *hello = &opened->hello;
  struct link *link = NULL;
  if (size == sizeof *hello && hello->magic == HELLO_MAGIC && hello->use < LINK_USES &&
      hello->rank < (uint32_t)links->ranks) {
    link = links_get(links, (enum link_use)hello->use, false, (int)hello->rank);
  }
  bool known = link && !link->comm;
  if (known) {
    link->comm = opened->comm;
    net_api()->deregister_memory(opened->comm, opened->mhandle);
    opened->comm = opened->mhandle = NULL;
  }
  close_unidentified(opened);
  return known && !register_shorts(link, result) ? -1 : 0;
}

static int identify_links(struct links *links, int *result)
{
  for (struct unidentified **at = &links->unidentified; *at;) {
    struct unidentified *opened = *at;
    int done = 0, size = 0;
    if (opened->request && failed(net_api()->test(opened->request, &done, &size), result)) {
      return -1;
    }
    if (!done) {
      at = &opened->next;
      continue;
    }
    *at = opened->next;
    if (identify(links, opened, (size_t)size, result) < 0) {
      return -1;
    }
  }
  return 0;
}

int link_open(struct links *links, struct link *link, int *result)
{
  if (link->comm) {
    return 1;
  }
  if (link->sends) {
    return connect_link(links, link, result);
  }
  if (accept_one(links, result) < 0 || identify_links(links, result) < 0) {
    return -1;
  }
  return link->comm != NULL;
}

static void *registered(struct link *link, const uint8_t *data, size_t bytes, int *result)
{
  for (struct registration *at = link->registrations; at; at = at->next) {
    if (data >= at->data && data + bytes <= at->data + at->bytes) {
      return at->mhandle;
    }
  }
  struct registration *made = calloc(1, sizeof *made);
  if (!made) {
    *result = ncclSystemError;
    return NULL;
  }
  made->data = data;
  made->bytes = bytes;
  void *memory = (void *)(uintptr_t)data;
  if (failed(net_api()->register_memory(link->comm, memory, bytes, &made->mhandle), result)) {
    free(made);
    return NULL;
  }
  made->next = link->registrations;
  link->registrations = made;
  return made->mhandle;
}

int link_register(struct link *link, void *data, size_t bytes, int *result)
{
  return registered(link, data, bytes, result) ? 0 : -1;
}

int link_post(struct link *link, void *data, size_t bytes, bool staged, void *owner, int32_t step,
              int *result)
{
  struct link_message *message = &link->messages[link->posted % LINK_MESSAGES];
  if (link->posted - link->done == LINK_MESSAGES) {
    return 0;
  }
  *message = (struct link_message){.owner = owner, .step = step, .bytes = bytes};
  void *mhandle = link->short_mhandle, *memory = data;
  if (staged) {
    if (!register_staging(link, result)) {
      return -1;
    }
    mhandle = link->staging_mhandle;
  } else if (bytes <= LINK_SHORT) {
    memory = short_message(link, link->posted);
    if (link->sends) {
      memcpy(memory, data, bytes);
    }
    message->deliver = data;
  } else {
    if (!(mhandle = registered(link, data, bytes, result))) {
      return -1;
    }
    message->registers = true;
  }
  const struct netapi *api = net_api();
  ncclResult_t call = link->sends
                          ? api->isend(link->comm, memory, bytes, mhandle, &message->request)
                          : api->irecv(link->comm, memory, bytes, mhandle, &message->request);
  if (failed(call, result)) {
    return -1;
  }
  if (!message->request) {
    return 0;
  }
  link->posted++;
  return 1;
}

int link_take(struct link *link, struct link_message *message, size_t *size, int *result)
{
  if (link->done == link->posted) {
    return 0;
  }
  *message = link->messages[link->done % LINK_MESSAGES];
  int done = 0, count = 0;
  if (failed(net_api()->test(message->request, &done, &count), result)) {
    return -1;
  }
  if (!done) {
    return 0;
  }
  if (!link->sends && message->deliver && (size_t)count <= message->bytes) {
    memcpy(message->deliver, short_message(link, link->done), (size_t)count);
  }
  link->done++;
  *size = (size_t)count;
  return 1;
}
