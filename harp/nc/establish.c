/* SPDX-License-Identifier: Apache-2.0 */
/* Establishes the one connection. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "harp/engine/clock.h"
#include "harp/nc/nc.h"

enum {
  /* bytes: the bandwidth of a memory-speed link times a busy host's delay */
  SEND_BUFFER = 4 << 20,
  /* bytes: more than hosts keep in flight, so only a slow reader closes the window */
  RECEIVE_BUFFER = 8 << 20,
  BACKLOG = 8,
};

static void say(const struct nc *nc, const char *what, struct harp_endpoint whom)
{
  if (nc->options->verbose) {
    fprintf(stderr, "harp nc: %s %s\n", what, nc_endpoint(whom));
  }
}

static uint64_t deadline_of(const struct nc *nc)
{
  unsigned seconds = nc->options->timeout_s;
  return seconds ? harp_clock_ns() + seconds * 1000000000ull : UINT64_MAX;
}

static int reserve(struct nc *nc)
{
  uint16_t wanted = nc->options->local_port;
  int result = harp_engine_reserve(nc->engine, 0, wanted, &nc->local_port);
  const char *device = nc->source.config.device;
  switch (result) {
  case 0: return NC_WELL;
  case -EADDRINUSE:
    return nc_fail("%s: port %u is in use on this host (ss -ltnp shows the process): give "
                   "another port, or remove -p",
                   device, wanted);
  case -EADDRNOTAVAIL:
    return nc_fail("%s: port %u is outside tcp_ports = %u-%u of %s: give one within, or widen it",
                   device, wanted, nc->source.config.tcp_ports.first,
                   nc->source.config.tcp_ports.last, nc->source.config.path);
  default:
    return nc_fail("%s: cannot take a local port: %s; a port below 1024 needs "
                   "CAP_NET_BIND_SERVICE",
                   device, strerror(-result));
  }
}

/* Creates a socket on the reserved port. Accepted sockets inherit its buffer sizes. */
static int make_socket(struct nc *nc)
{
  struct harp_stack *stack = nc->instance->stack;
  struct sockaddr_in local = {.sin_family = AF_INET, .sin_port = htons(nc->local_port)};
  int send = SEND_BUFFER, receive = RECEIVE_BUFFER;
  int number = harp_tcp_socket(stack);
  int result = number < 0 ? number
                          : harp_tcp_bind(stack, number, (struct sockaddr *)&local, sizeof local);
  if (result != 0) {
    return nc_fail("%s: no socket on port %u: %s; try another port", nc->source.config.device,
                   nc->local_port, strerror(-result));
  }
  harp_tcp_setsockopt(stack, number, SOL_SOCKET, SO_SNDBUF, &send, sizeof send);
  harp_tcp_setsockopt(stack, number, SOL_SOCKET, SO_RCVBUF, &receive, sizeof receive);
  nc->socket = number;
  return NC_WELL;
}

static int resolve(struct nc *nc)
{
  const struct addrinfo wanted = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
  struct addrinfo *found;
  int result = getaddrinfo(nc->options->host, NULL, &wanted, &found);
  if (result != 0) {
    return nc_fail("%s: no such host: %s; give an IPv4 address or a name that getent ahostsv4 "
                   "knows",
                   nc->options->host, gai_strerror(result));
  }
  struct sockaddr_in address;
  memcpy(&address, found->ai_addr, sizeof address);
  freeaddrinfo(found);
  nc->peer = (struct harp_endpoint){address.sin_addr.s_addr, nc->options->port};
  return NC_WELL;
}

static int connect_failed(const struct nc *nc, int error)
{
  const char *peer = nc_endpoint(nc->peer);
  switch (error) {
  case ECONNREFUSED: return nc_fail("%s refused the connection: start a listener there", peer);
  case ETIMEDOUT:
    return nc_fail("%s did not answer: check that it is up and that no firewall drops the packets",
                   peer);
  case EHOSTUNREACH:
    return nc_fail("%s: no answer to ARP from it or its gateway: check the address, the cable "
                   "and --gateway",
                   peer);
  case ENETUNREACH:
    return nc_fail("%s is outside the local network, and there is no gateway: give "
                   "--gateway",
                   peer);
  default: return nc_fail("%s: no connection: %s; check address and port", peer, strerror(error));
  }
}

/* Waits until the socket has the event or fails. 0, or an errno. */
static int wait_for(struct nc *nc, int event, uint64_t deadline)
{
  struct harp_stack *stack = nc->instance->stack;
  for (;;) {
    bool worked = nc_poll(nc);
    int events = harp_tcp_poll(stack, nc->socket);
    if (events & POLLERR) {
      int error = 0;
      socklen_t length = sizeof error;
      harp_tcp_getsockopt(stack, nc->socket, SOL_SOCKET, SO_ERROR, &error, &length);
      return error;
    }
    if (events & event) {
      return 0;
    }
    if (nc_signal()) {
      return EINTR;
    }
    if (harp_clock_ns() >= deadline) {
      return ETIMEDOUT;
    }
    if (!worked) {
      nc_wait(nc, NULL, 0, deadline);
    }
  }
}

int nc_connect(struct nc *nc)
{
  struct harp_stack *stack = nc->instance->stack;
  int status = resolve(nc);
  if (status == NC_WELL) {
    status = reserve(nc);
  }
  if (status == NC_WELL) {
    status = make_socket(nc);
  }
  if (status != NC_WELL) {
    return status;
  }
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_addr.s_addr = nc->peer.address, .sin_port = htons(nc->peer.port)};
  int result = harp_tcp_connect(stack, nc->socket, (struct sockaddr *)&address, sizeof address);
  int error = result == -EINPROGRESS ? wait_for(nc, POLLOUT, deadline_of(nc)) : -result;
  if (error == EINTR) {
    return NC_FAILED; /* the signal itself is the message */
  }
  if (error) {
    return connect_failed(nc, error);
  }
  say(nc, "connected to", nc->peer);
  return NC_WELL;
}

/* Accepts a peer from the listener into nc->socket. Returns false if none waits. */
static bool take_peer(struct nc *nc, int listener)
{
  struct harp_stack *stack = nc->instance->stack;
  struct sockaddr_in address = {0};
  socklen_t length = sizeof address;
  int number = harp_tcp_accept(stack, listener, (struct sockaddr *)&address, &length);
  if (number < 0) {
    return false;
  }
  nc->socket = number;
  nc->peer = (struct harp_endpoint){address.sin_addr.s_addr, ntohs(address.sin_port)};
  return true;
}

int nc_accept(struct nc *nc)
{
  struct harp_stack *stack = nc->instance->stack;
  uint64_t deadline = deadline_of(nc);
  int status = reserve(nc);
  if (status == NC_WELL) {
    status = make_socket(nc);
  }
  if (status != NC_WELL) {
    return status;
  }
  int listener = nc->socket, error;
  harp_tcp_listen(stack, listener, BACKLOG);
  say(nc, "listening on", nc_local(nc));
  do {
    nc->socket = listener;
    error = wait_for(nc, POLLIN, deadline);
  } while (error == 0 && !take_peer(nc, listener));
  if (error == 0) {
    harp_tcp_close(stack, listener);
    say(nc, "connected from", nc->peer);
    return NC_WELL;
  }
  if (error == EINTR) {
    return NC_FAILED; /* the signal itself is the message */
  }
  return nc_fail("no peer connected to %s within %u s: start the peer, or raise -w",
                 nc_endpoint(nc_local(nc)), nc->options->timeout_s);
}
