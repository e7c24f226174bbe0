/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connection setup. NCCL carries the listener's handle to the peer. The peer opens all sockets of
 * the link at once and sends a hello on each. The listener groups the sockets by their hello. The
 * kernel completes connections by itself, so connect never waits for the peer's accept.
 *
 * Threads: NCCL's service threads. A lock protects the list of attempts.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harp/bench/kernel/kernel.h"

#define HANDLE_MAGIC 0x3150435454454eabull
#define HELLO_MAGIC 0x304c4c45484cabcdull

enum { MAX_ARRIVALS = 256 };

/* The handle that NCCL carries to the peer, with scratch space for the peer's connect. It begins
 * like the handles of NCCL's own socket transport: the listening address in the room of an IPv6
 * one, a magic number, and two counts. */
struct handle {
  uint16_t family;  /* AF_INET */
  uint16_t port;    /* network order */
  uint32_t address; /* network order */
  uint8_t unused[24];
  uint64_t magic;
  uint32_t sockets;
  uint32_t threads; /* threads beside the progress thread: none */
  uint64_t token;   /* a connecting peer must present it */
  uint32_t attempt; /* scratch: id of the connect in progress; 0: none */
};
_Static_assert(sizeof(struct handle) <= NET_HANDLE_SIZE, "the handle must fit NCCL's");

struct hello {
  uint64_t magic;
  uint64_t token;
  uint64_t link;  /* random, the same on all sockets of a link */
  uint32_t index; /* number of this socket within the link */
  uint32_t sockets;
};

/* A connect in progress. */
struct attempt {
  struct attempt *next;
  uint32_t id;
  uint64_t deadline_ms;
  struct hello hello;
  unsigned hello_sent; /* one bit per socket whose hello was sent */
  struct net_link *link;
};

/* An accepted socket with an incomplete hello, or with missing sockets of the same link. */
struct arrival {
  struct arrival *next;
  int fd;
  uint64_t deadline_ms;
  size_t got; /* received bytes of hello */
  struct hello hello;
  struct sockaddr_in from;
};

struct net_listener {
  int fd;
  int sockets;
  uint64_t token;
  unsigned count; /* number of arrivals */
  struct arrival *arrivals;
};

static pthread_mutex_t attempts_lock = PTHREAD_MUTEX_INITIALIZER;
static struct attempt *attempts;
static uint32_t last_attempt;

static uint64_t random_word(void)
{
  uint64_t word = 0;
  if (getrandom(&word, sizeof(word), 0) != (ssize_t)sizeof(word)) {
    word = kernel_now_ms() * 0x9e3779b97f4a7c15ull;
  }
  return word;
}

static int set_option(int fd, int level, int option, int value)
{
  return setsockopt(fd, level, option, &value, sizeof(value));
}

static struct net_link *new_link(int sockets, bool sends)
{
  struct net_link *link = calloc(1, sizeof(*link));
  if (!link) {
    return NULL;
  }
  link->sends = sends;
  link->sockets = sockets;
  for (int i = 0; i < KERNEL_MAX_SOCKETS; i++) {
    link->fd[i] = -1;
  }
  return link;
}

static void free_link(struct net_link *link)
{
  for (int i = 0; i < link->sockets; i++) {
    if (link->fd[i] >= 0) {
      close(link->fd[i]);
    }
  }
  free(link);
}

/* Creates a nonblocking TCP socket with all options of settings. Returns its descriptor, or a
 * negative errno with a line in the log. */
static int open_socket(const struct kernel_settings *settings)
{
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd >= 0 &&
      (set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1) || set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1) ||
       set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1 + settings->timeout_ms / 2000) ||
       set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1) ||
       set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, settings->timeout_ms) ||
       (settings->congestion[0] && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, settings->congestion,
                                              (socklen_t)strlen(settings->congestion))))) {
    int error = errno;
    close(fd);
    errno = error;
    fd = -1;
  }
  if (fd >= 0) {
    return fd;
  }
  int error = -errno;
  kernel_warn("NET/KERNEL: cannot create a socket: %s. Check `ulimit -n` and the congestion "
              "control %s",
              strerror(-error), settings->congestion);
  return error;
}

static void name_peer(struct net_link *link, const struct sockaddr_in *peer)
{
  char address[INET_ADDRSTRLEN] = "?";
  inet_ntop(AF_INET, &peer->sin_addr, address, sizeof(address));
  snprintf(link->peer, sizeof(link->peer), "%s:%u", address, ntohs(peer->sin_port));
}

int net_listen(int device, void *opaque, struct net_listener **out)
{
  struct sockaddr_in local = {.sin_family = AF_INET, .sin_addr = kernel_settings.address};
  socklen_t length = sizeof(local);
  if (device != 0) {
    return -EINVAL;
  }
  struct net_listener *listener = calloc(1, sizeof(*listener));
  if (!listener) {
    return -ENOMEM;
  }
  listener->sockets = kernel_settings.sockets;
  listener->token = random_word();
  listener->fd = open_socket(&kernel_settings);
  if (listener->fd < 0 || bind(listener->fd, (struct sockaddr *)&local, sizeof(local)) ||
      listen(listener->fd, SOMAXCONN) ||
      getsockname(listener->fd, (struct sockaddr *)&local, &length)) {
    int error = listener->fd < 0 ? listener->fd : -errno;
    kernel_warn("NET/KERNEL: cannot listen on %s: %s", kernel_settings.interface, strerror(-error));
    net_close_listener(listener);
    return error;
  }
  struct handle handle = {
      .family = AF_INET,
      .port = local.sin_port,
      .address = local.sin_addr.s_addr,
      .magic = HANDLE_MAGIC,
      .sockets = (uint32_t)listener->sockets,
      .token = listener->token,
  };
  memset(opaque, 0, NET_HANDLE_SIZE);
  memcpy(opaque, &handle, sizeof(handle));
  *out = listener;
  return 0;
}

/* Removes the attempt with this id from the list; NULL: not found. */
static struct attempt *attempt_take(uint32_t id)
{
  pthread_mutex_lock(&attempts_lock);
  struct attempt **place = &attempts;
  while (*place && (*place)->id != id) {
    place = &(*place)->next;
  }
  struct attempt *found = *place;
  if (found) {
    *place = found->next;
  }
  pthread_mutex_unlock(&attempts_lock);
  return found;
}

static void attempt_keep(struct attempt *attempt)
{
  pthread_mutex_lock(&attempts_lock);
  if (!attempt->id) {
    if (++last_attempt == 0) {
      last_attempt = 1;
    }
    attempt->id = last_attempt;
  }
  attempt->next = attempts;
  attempts = attempt;
  pthread_mutex_unlock(&attempts_lock);
}

static void attempt_drop(struct attempt *attempt)
{
  if (attempt->link) {
    free_link(attempt->link);
  }
  free(attempt);
}

static int attempt_open(struct attempt *attempt, const struct handle *handle)
{
  struct sockaddr_in peer = {
      .sin_family = AF_INET,
      .sin_port = handle->port,
      .sin_addr.s_addr = handle->address,
  };
  struct sockaddr_in local = {.sin_family = AF_INET, .sin_addr = kernel_settings.address};
  name_peer(attempt->link, &peer);
  for (int i = 0; i < attempt->link->sockets; i++) {
    int fd = open_socket(&kernel_settings);
    if (fd < 0) {
      return fd;
    }
    attempt->link->fd[i] = fd;
    if (bind(fd, (struct sockaddr *)&local, sizeof(local))) {
      return -errno;
    }
    if (connect(fd, (struct sockaddr *)&peer, sizeof(peer)) && errno != EINPROGRESS) {
      return -errno;
    }
  }
  return 0;
}

static bool handle_is_ours(const struct handle *handle)
{
  return handle->family == AF_INET && handle->magic == HANDLE_MAGIC && handle->sockets >= 1 &&
         handle->sockets <= KERNEL_MAX_SOCKETS;
}

static int attempt_begin(const struct handle *handle, struct attempt **out)
{
  if (!handle_is_ours(handle)) {
    kernel_warn("NET/KERNEL: the peer uses another transport (its handle has the address family "
                "%u and the magic number %016llx): let every rank load the same plugin",
                handle->family, (unsigned long long)handle->magic);
    return -EPROTO;
  }
  struct attempt *attempt = calloc(1, sizeof(*attempt));
  if (!attempt) {
    return -ENOMEM;
  }
  attempt->link = new_link((int)handle->sockets, true);
  attempt->deadline_ms = kernel_now_ms() + (uint64_t)kernel_settings.timeout_ms;
  attempt->hello = (struct hello){
      .magic = HELLO_MAGIC,
      .token = handle->token,
      .link = random_word(),
      .sockets = handle->sockets,
  };
  *out = attempt;
  return attempt->link ? attempt_open(attempt, handle) : -ENOMEM;
}

/* Sends the hello on one socket. 1: sent; 0: still connecting; else a negative errno. */
static int attempt_hello(struct attempt *attempt, int index)
{
  struct pollfd ready = {.fd = attempt->link->fd[index], .events = POLLOUT};
  int error = 0;
  socklen_t length = sizeof(error);
  if (poll(&ready, 1, 0) <= 0) {
    return 0;
  }
  if (getsockopt(ready.fd, SOL_SOCKET, SO_ERROR, &error, &length)) {
    return -errno;
  }
  if (error) {
    return -error;
  }
  struct hello hello = attempt->hello;
  hello.index = (uint32_t)index;
  /* The send buffer is empty, so the whole hello fits or the connection is broken. */
  ssize_t sent = send(ready.fd, &hello, sizeof(hello), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    return -errno;
  }
  return sent == (ssize_t)sizeof(hello) ? 1 : -EIO;
}

/* 1: every socket has sent its hello; 0: call again. */
static int attempt_step(struct attempt *attempt)
{
  unsigned all = (1u << attempt->link->sockets) - 1;
  for (int i = 0; i < attempt->link->sockets; i++) {
    if (attempt->hello_sent & (1u << i)) {
      continue;
    }
    int done = attempt_hello(attempt, i);
    if (done < 0) {
      return done;
    }
    if (done) {
      attempt->hello_sent |= 1u << i;
    }
  }
  if (attempt->hello_sent == all) {
    return 1;
  }
  return kernel_now_ms() < attempt->deadline_ms ? 0 : -ETIMEDOUT;
}

int net_connect(int device, void *opaque, struct net_link **out)
{
  struct handle handle;
  struct attempt *attempt = NULL;
  int done = 0;
  memcpy(&handle, opaque, sizeof(handle));
  if (device != 0) {
    return -EINVAL;
  }
  if (handle.attempt) {
    attempt = attempt_take(handle.attempt);
  }
  if (!attempt) {
    done = attempt_begin(&handle, &attempt);
  }
  if (!done) {
    done = attempt_step(attempt);
  }
  if (done < 0) {
    if (attempt) {
      kernel_warn("NET/KERNEL: connection to %s failed: %s",
                  attempt->link ? attempt->link->peer : "?", strerror(-done));
      attempt_drop(attempt);
    }
    return done;
  }
  if (done) {
    *out = attempt->link;
    free(attempt);
    return 0;
  }
  attempt_keep(attempt);
  handle.attempt = attempt->id;
  memcpy(opaque, &handle, sizeof(handle));
  return 0;
}

static void listener_take_new(struct net_listener *listener)
{
  while (listener->count < MAX_ARRIVALS) {
    struct sockaddr_in from = {0};
    socklen_t length = sizeof(from);
    int fd = accept4(listener->fd, (struct sockaddr *)&from, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      return;
    }
    struct arrival *arrival = calloc(1, sizeof(*arrival));
    if (!arrival) {
      close(fd);
      return;
    }
    arrival->fd = fd;
    arrival->from = from;
    arrival->deadline_ms = kernel_now_ms() + (uint64_t)kernel_settings.timeout_ms;
    arrival->next = listener->arrivals;
    listener->arrivals = arrival;
    listener->count++;
  }
}

static bool arrival_is_welcome(const struct net_listener *listener, const struct arrival *arrival)
{
  const struct hello *hello = &arrival->hello;
  return hello->magic == HELLO_MAGIC && hello->token == listener->token &&
         hello->sockets == (uint32_t)listener->sockets && hello->index < hello->sockets;
}

/* Continues reading the hello. Returns false if the arrival is an unauthenticated peer, timed
 * out, or closed. */
static bool arrival_read(struct net_listener *listener, struct arrival *arrival)
{
  if (arrival->got == sizeof(arrival->hello)) {
    return kernel_now_ms() < arrival->deadline_ms;
  }
  ssize_t got = recv(arrival->fd, (char *)&arrival->hello + arrival->got,
                     sizeof(arrival->hello) - arrival->got, MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
    return false;
  }
  if (got > 0) {
    arrival->got += (size_t)got;
  }
  if (arrival->got == sizeof(arrival->hello)) {
    return arrival_is_welcome(listener, arrival);
  }
  return kernel_now_ms() < arrival->deadline_ms;
}

static void listener_read(struct net_listener *listener)
{
  struct arrival **place = &listener->arrivals;
  while (*place) {
    struct arrival *arrival = *place;
    if (arrival_read(listener, arrival)) {
      place = &arrival->next;
      continue;
    }
    *place = arrival->next;
    listener->count--;
    close(arrival->fd);
    free(arrival);
  }
}

static bool same_link(const struct arrival *arrival, uint64_t link)
{
  return arrival->got == sizeof(arrival->hello) && arrival->hello.link == link;
}

static unsigned present(const struct net_listener *listener, uint64_t link)
{
  unsigned bits = 0;
  for (const struct arrival *arrival = listener->arrivals; arrival; arrival = arrival->next) {
    if (same_link(arrival, link)) {
      bits |= 1u << arrival->hello.index;
    }
  }
  return bits;
}

static struct net_link *assemble(struct net_listener *listener, uint64_t id)
{
  struct net_link *link = new_link(listener->sockets, false);
  struct arrival **place = &listener->arrivals;
  while (link && *place) {
    struct arrival *arrival = *place;
    if (!same_link(arrival, id)) {
      place = &arrival->next;
      continue;
    }
    *place = arrival->next;
    listener->count--;
    if (link->fd[arrival->hello.index] >= 0) {
      close(link->fd[arrival->hello.index]);
    }
    link->fd[arrival->hello.index] = arrival->fd;
    name_peer(link, &arrival->from);
    free(arrival);
  }
  return link;
}

int net_accept(struct net_listener *listener, struct net_link **out)
{
  unsigned all = (1u << listener->sockets) - 1;
  listener_take_new(listener);
  listener_read(listener);
  for (const struct arrival *arrival = listener->arrivals; arrival; arrival = arrival->next) {
    if (arrival->got == sizeof(arrival->hello) && present(listener, arrival->hello.link) == all) {
      *out = assemble(listener, arrival->hello.link);
      return *out ? 0 : -ENOMEM;
    }
  }
  return 0;
}

int net_close_listener(struct net_listener *listener)
{
  while (listener->arrivals) {
    struct arrival *arrival = listener->arrivals;
    listener->arrivals = arrival->next;
    close(arrival->fd);
    free(arrival);
  }
  if (listener->fd >= 0) {
    close(listener->fd);
  }
  free(listener);
  return 0;
}

/* The kernel still delivers data that it has accepted. Outstanding requests end without
 * completion. */
int net_close(struct net_link *link)
{
  free_link(link);
  return 0;
}
