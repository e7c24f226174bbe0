/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/bench/rendezvous.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "harp/bench/clock.h"

enum { MAGIC = 0x48505247, RETRY_MS = 50, DECLINE_MS = 2000, ERROR_SIZE = 512, NAMED = 8 };
enum { HELLO_MS = 2000, STRANGERS_MOST = 512 };

struct hello {
  uint32_t magic;
  int32_t rank, ranks; /* ranks 0: this rank does not take part */
};

/* A connection that has not sent its hello yet. Any host may connect. */
struct stranger {
  int fd;
  uint64_t limit_ns;
  size_t filled; /* bytes of the hello */
  struct hello hello;
};

struct rendezvous {
  int rank, ranks;
  int timeout_ms;
  int listener;    /* rank 0, until all ranks have connected; else -1 */
  bool everywhere; /* see rendezvous_open */
  int *peer;       /* rank 0: a socket per rank; other ranks: peer[0] leads to rank 0 */
  char error[ERROR_SIZE];
};

static int fail(struct rendezvous *rendezvous, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int fail(struct rendezvous *rendezvous, const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(rendezvous->error, sizeof(rendezvous->error), format, arguments);
  va_end(arguments);
  return -1;
}

const char *rendezvous_error(const struct rendezvous *rendezvous) { return rendezvous->error; }

struct rendezvous *rendezvous_new(int rank, int ranks, int timeout_ms)
{
  struct rendezvous *rendezvous = calloc(1, sizeof(*rendezvous));
  int *peer = calloc((size_t)ranks, sizeof(*peer));
  if (!rendezvous || !peer) {
    free(rendezvous);
    free(peer);
    return NULL;
  }
  for (int i = 0; i < ranks; i++) {
    peer[i] = -1;
  }
  *rendezvous = (struct rendezvous){
      .rank = rank, .ranks = ranks, .timeout_ms = timeout_ms, .listener = -1, .peer = peer};
  return rendezvous;
}

void rendezvous_close(struct rendezvous *rendezvous)
{
  for (int i = 0; i < rendezvous->ranks; i++) {
    if (rendezvous->peer[i] >= 0) {
      close(rendezvous->peer[i]);
    }
  }
  if (rendezvous->listener >= 0) {
    close(rendezvous->listener);
  }
  free(rendezvous->peer);
  free(rendezvous);
}

/* Waits until fd is ready for events. 0; -1: the deadline passed. */
static int wait_for(int fd, short events, uint64_t deadline_ns)
{
  struct pollfd ready = {.fd = fd, .events = events};
  for (;;) {
    uint64_t now = clock_ns();
    if (now >= deadline_ns) {
      return -1;
    }
    int left = (int)((deadline_ns - now) / 1000000) + 1;
    if (poll(&ready, 1, left) > 0) {
      return 0;
    }
  }
}

/* Moves exactly size bytes. 0, or an errno. */
static int move(int fd, void *data, size_t size, uint64_t deadline_ns, int writing)
{
  size_t moved = 0;
  while (moved < size) {
    if (wait_for(fd, writing ? POLLOUT : POLLIN, deadline_ns)) {
      return ETIMEDOUT;
    }
    char *place = (char *)data + moved;
    ssize_t step = writing ? send(fd, place, size - moved, MSG_NOSIGNAL | MSG_DONTWAIT)
                           : recv(fd, place, size - moved, MSG_DONTWAIT);
    if (step == 0 && !writing) {
      return ECONNRESET;
    }
    if (step < 0 && errno != EAGAIN && errno != EINTR) {
      return errno;
    }
    if (step > 0) {
      moved += (size_t)step;
    }
  }
  return 0;
}

static uint64_t deadline(const struct rendezvous *rendezvous)
{
  return clock_ns() + (uint64_t)rendezvous->timeout_ms * 1000000;
}

static void no_delay(int fd)
{
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

struct place {
  struct sockaddr_storage address;
  socklen_t length; /* bytes */
};

/* host "unix": port is a path. Ranks without a common network meet there. */
static int resolve(struct rendezvous *rendezvous, const char *host, const char *port, int flags,
                   struct place *place)
{
  struct addrinfo hints = {.ai_family = rendezvous->everywhere ? AF_INET : AF_UNSPEC,
                           .ai_socktype = SOCK_STREAM,
                           .ai_flags = flags};
  struct addrinfo *found;
  struct sockaddr_un path = {.sun_family = AF_UNIX};
  memset(place, 0, sizeof(*place));
  if (strcmp(host, "unix") == 0) {
    if (strlen(port) >= sizeof(path.sun_path)) {
      return fail(rendezvous, "--rendezvous unix:%s: the path is too long", port);
    }
    memcpy(path.sun_path, port, strlen(port));
    memcpy(&place->address, &path, sizeof(path));
    place->length = sizeof(path);
    return 0;
  }
  int unknown = getaddrinfo(host, port, &hints, &found);
  if (unknown) {
    return fail(rendezvous, "--rendezvous %s:%s: %s", host, port, gai_strerror(unknown));
  }
  memcpy(&place->address, found->ai_addr, found->ai_addrlen);
  place->length = found->ai_addrlen;
  freeaddrinfo(found);
  return 0;
}

static int open_listener(struct rendezvous *rendezvous, const char *host, const char *port)
{
  struct place place;
  int on = 1;
  const char *bound = rendezvous->everywhere ? "0.0.0.0" : host;
  if (resolve(rendezvous, bound, port, AI_PASSIVE, &place)) {
    return -1;
  }
  int fd = socket(place.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  int bad = fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
            bind(fd, (struct sockaddr *)&place.address, place.length) || listen(fd, SOMAXCONN);
  int error = errno;
  rendezvous->listener = fd;
  if (bad) {
    return fail(rendezvous,
                "rank 0 cannot listen on %s:%s: %s; name an address of this host and a "
                "free port in --rendezvous",
                host, port, strerror(error));
  }
  return 0;
}

/* Reads from a connection. 1: its hello is complete; 0: not yet; -1: it has ended. */
static int read_hello(struct stranger *stranger)
{
  char *place = (char *)&stranger->hello + stranger->filled;
  ssize_t step = recv(stranger->fd, place, sizeof(stranger->hello) - stranger->filled,
                      MSG_DONTWAIT);
  if (step == 0 || (step < 0 && errno != EAGAIN && errno != EINTR)) {
    return -1;
  }
  stranger->filled += step > 0 ? (size_t)step : 0;
  return stranger->filled == sizeof(stranger->hello);
}

/* Closes an unauthenticated peer. A rank with other parameters of the run is an error. */
static int admit(struct rendezvous *rendezvous, const struct stranger *stranger)
{
  struct hello hello = stranger->hello;
  int fd = stranger->fd;
  if (hello.magic != MAGIC) {
    close(fd);
    return 0;
  }
  if (hello.ranks == 0) {
    close(fd);
    return fail(rendezvous, "rank %d does not take part: read the output there", hello.rank);
  }
  if (hello.ranks != rendezvous->ranks || hello.rank < 1 || hello.rank >= rendezvous->ranks ||
      rendezvous->peer[hello.rank] >= 0) {
    close(fd);
    return fail(rendezvous,
                "a rank connected as %d of %d, which is not free among %d ranks: give "
                "every rank its own --rank and all the same --nranks",
                hello.rank, hello.ranks, rendezvous->ranks);
  }
  rendezvous->peer[hello.rank] = fd;
  return 1;
}

/* Fails because of the ranks that have not connected. Names the first ones. */
static int fail_without_ranks(struct rendezvous *rendezvous, int missing, const char *host,
                              const char *port)
{
  char named[NAMED * 12] = "";
  int count = 0;
  for (int rank = 1; rank < rendezvous->ranks && count < NAMED; rank++) {
    if (rendezvous->peer[rank] < 0) {
      size_t used = strlen(named);
      snprintf(named + used, sizeof(named) - used, "%s%d", count++ ? ", " : "", rank);
    }
  }
  return fail(rendezvous,
              "rank%s %s%s of %d did not connect to %s:%s within %d ms: read the output there, "
              "and see whether TCP from there reaches this port",
              missing > 1 ? "s" : "", named, missing > count ? ", ..." : "", rendezvous->ranks,
              host, port, rendezvous->timeout_ms);
}

struct crowd {
  struct stranger at[STRANGERS_MOST]; /* the oldest first */
  int count;
};

static void leave(struct crowd *crowd, int i)
{
  crowd->count--;
  memmove(&crowd->at[i], &crowd->at[i + 1], (size_t)(crowd->count - i) * sizeof(crowd->at[0]));
}

/* Waits until someone connects, sends something, or has taken too long. */
static void wait_for_any(int listener, const struct crowd *crowd, uint64_t limit_ns)
{
  struct pollfd ready[1 + STRANGERS_MOST] = {{.fd = listener, .events = POLLIN}};
  uint64_t now = clock_ns();
  for (int i = 0; i < crowd->count; i++) {
    ready[1 + i] = (struct pollfd){.fd = crowd->at[i].fd, .events = POLLIN};
  }
  if (crowd->count && crowd->at[0].limit_ns < limit_ns) {
    limit_ns = crowd->at[0].limit_ns;
  }
  poll(ready, 1 + (nfds_t)crowd->count, now < limit_ns ? (int)((limit_ns - now) / 1000000) + 1 : 0);
}

/* Accepts a connection, if there is one. The oldest one makes room. */
static bool accept_stranger(int listener, struct crowd *crowd)
{
  int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    return false;
  }
  if (crowd->count == STRANGERS_MOST) {
    close(crowd->at[0].fd);
    leave(crowd, 0);
  }
  no_delay(fd);
  crowd->at[crowd->count++] = (struct stranger){.fd = fd,
                                                .limit_ns = clock_ns() + HELLO_MS * 1000000ull};
  return true;
}

/* Reads from all connections. Returns the number of ranks that have come, or -1 for an error. */
static int hear(struct rendezvous *rendezvous, struct crowd *crowd)
{
  int came = 0;
  for (int i = 0; i < crowd->count;) {
    struct stranger *stranger = &crowd->at[i];
    int complete = read_hello(stranger);
    if (complete == 0 && clock_ns() < stranger->limit_ns) {
      i++;
      continue;
    }
    struct stranger left = *stranger;
    leave(crowd, i);
    if (complete <= 0) {
      close(left.fd);
      continue;
    }
    int admitted = admit(rendezvous, &left);
    if (admitted < 0) {
      return -1;
    }
    came += admitted;
  }
  return came;
}

static int host_ranks(struct rendezvous *rendezvous, const char *host, const char *port)
{
  uint64_t limit = deadline(rendezvous);
  struct crowd crowd = {.count = 0};
  int missing = rendezvous->ranks - 1, came = 0;
  if (open_listener(rendezvous, host, port)) {
    return -1;
  }
  while (missing > 0 && came >= 0 && clock_ns() < limit) {
    wait_for_any(rendezvous->listener, &crowd, limit);
    for (int i = 0; i < STRANGERS_MOST && accept_stranger(rendezvous->listener, &crowd); i++) {
    }
    came = hear(rendezvous, &crowd);
    missing -= came > 0 ? came : 0;
  }
  while (crowd.count) {
    close(crowd.at[--crowd.count].fd);
  }
  if (came < 0) {
    return -1;
  }
  if (missing > 0) {
    return fail_without_ranks(rendezvous, missing, host, port);
  }
  close(rendezvous->listener);
  rendezvous->listener = -1;
  if (strcmp(host, "unix") == 0) {
    unlink(port);
  }
  return 0;
}

/* Tries one address once. Returns a connected socket, or -1 with errno. */
static int dial(const struct place *place, uint64_t limit_ns)
{
  int error = 0;
  socklen_t length = sizeof(error);
  int fd = socket(place->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return -1;
  }
  if (connect(fd, (const struct sockaddr *)&place->address, place->length) &&
      errno != EINPROGRESS) {
    error = errno;
  } else if (wait_for(fd, POLLOUT, limit_ns)) {
    error = ETIMEDOUT;
  } else {
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  }
  if (!error) {
    return fd;
  }
  close(fd);
  errno = error;
  return -1;
}

/* ranks: of the hello. */
static int visit_rank_0(struct rendezvous *rendezvous, const char *host, const char *port,
                        int ranks)
{
  struct place place;
  struct hello hello = {.magic = MAGIC, .rank = rendezvous->rank, .ranks = ranks};
  uint64_t limit = deadline(rendezvous);
  if (resolve(rendezvous, host, port, 0, &place)) {
    return -1;
  }
  /* Rank 0 may start later than this rank. */
  while ((rendezvous->peer[0] = dial(&place, limit)) < 0 && clock_ns() < limit) {
    poll(NULL, 0, RETRY_MS);
  }
  int error = errno;
  if (rendezvous->peer[0] < 0) {
    return fail(rendezvous,
                "rank 0 did not answer at %s:%s within %d ms: %s; read the output there, and "
                "see whether TCP from here reaches that port",
                host, port, rendezvous->timeout_ms, strerror(error));
  }
  no_delay(rendezvous->peer[0]);
  error = move(rendezvous->peer[0], &hello, sizeof(hello), limit, 1);
  return error ? fail(rendezvous, "rank 0 at %s:%s: %s", host, port, strerror(error)) : 0;
}

int rendezvous_open(struct rendezvous *rendezvous, const char *host, const char *port,
                    bool everywhere)
{
  rendezvous->everywhere = everywhere;
  return rendezvous->rank == 0 ? host_ranks(rendezvous, host, port)
                               : visit_rank_0(rendezvous, host, port, rendezvous->ranks);
}

void rendezvous_decline(struct rendezvous *rendezvous, const char *host, const char *port)
{
  if (rendezvous->rank != 0) {
    rendezvous->timeout_ms = DECLINE_MS;
    visit_rank_0(rendezvous, host, port, 0);
  }
}

static int transfer(struct rendezvous *rendezvous, int rank, void *data, size_t size,
                    uint64_t limit_ns, int writing)
{
  int error = move(rendezvous->peer[rank], data, size, limit_ns, writing);
  return error ? fail(rendezvous, "rank %d is lost (rendezvous: %s)", rank, strerror(error)) : 0;
}

static int gather_and_share(struct rendezvous *rendezvous, const void *mine, size_t size, char *all)
{
  uint64_t limit = deadline(rendezvous);
  memcpy(all, mine, size);
  for (int rank = 1; rank < rendezvous->ranks; rank++) {
    if (transfer(rendezvous, rank, all + (size_t)rank * size, size, limit, 0)) {
      return -1;
    }
  }
  for (int rank = 1; rank < rendezvous->ranks; rank++) {
    if (transfer(rendezvous, rank, all, size * (size_t)rendezvous->ranks, limit, 1)) {
      return -1;
    }
  }
  return 0;
}

int rendezvous_exchange(struct rendezvous *rendezvous, const void *mine, size_t size, void *all)
{
  if (rendezvous->rank == 0) {
    return gather_and_share(rendezvous, mine, size, all);
  }
  uint64_t limit = deadline(rendezvous);
  memcpy(all, mine, size); /* all is writable, so mine can stay const */
  if (transfer(rendezvous, 0, all, size, limit, 1)) {
    return -1;
  }
  return transfer(rendezvous, 0, all, size * (size_t)rendezvous->ranks, limit, 0);
}

/* A rank that has ended hangs up. Its last bytes may still wait to be read. */
bool rendezvous_is_broken(struct rendezvous *rendezvous)
{
  for (int rank = 0; rank < rendezvous->ranks; rank++) {
    struct pollfd peer = {.fd = rendezvous->peer[rank], .events = POLLRDHUP};
    if (peer.fd >= 0 && poll(&peer, 1, 0) > 0) {
      fail(rendezvous, "rank %d is lost: see what it says", rank);
      return true;
    }
  }
  return false;
}
