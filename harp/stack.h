/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HARP's TCP/IP stack: one header, one static library (libharp_stack.a), and
 * nothing but the C library below it.
 *
 * A stack is a value. It reads no clock (time is the last harp_stack_advance),
 * draws no random numbers (config.seed is its only source), allocates nothing
 * after creation, takes no lock, logs nothing, and speaks to the world only by
 * its output callback. Two runs with the same calls give the same frames.
 *
 * Thread: a stack belongs to one thread at a time; the caller sees to that.
 * Errors: every function that can fail returns a negative errno.
 * Constants: socket levels, options, flags, poll bits and the fields of
 * struct tcp_info are Linux's (<netinet/tcp.h>, <sys/socket.h>, <poll.h>).
 */
#ifndef HARP_STACK_H
#define HARP_STACK_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct harp_stack;

enum harp_link_type {
  HARP_LINK_IP = 0,       /* frames are IPv4 packets; no ARP */
  HARP_LINK_ETHERNET = 1, /* frames are Ethernet frames */
};

/* Fill with harp_stack_config_default, then change what matters. */
struct harp_stack_config {
  size_t size;             /* sizeof(struct harp_stack_config) of the caller */
  int link;                /* enum harp_link_type */
  uint8_t mac[6];          /* own hardware address (HARP_LINK_ETHERNET) */
  uint32_t address;        /* own IPv4 address, network order */
  uint8_t prefix;          /* length of the address's prefix, bits, 0-32 */
  uint32_t gateway;        /* next hop outside the prefix, network order; 0: none */
  uint16_t mtu;            /* largest IPv4 packet, bytes, 576-65535 */
  uint64_t seed[2];        /* key of initial sequence numbers, ports and timestamps */
  uint32_t max_connections;
  uint32_t packets;        /* packet buffers for data that waits, 2 KiB each */
  uint32_t initial_window; /* congestion window at the start, segments (RFC 6928) */
  uint32_t rto_initial_us; /* RFC 6298 */
  uint32_t rto_min_us;     /* least of the timeout beyond the smoothed round trip, as in Linux */
  uint32_t rto_max_us;
  uint32_t delayed_ack_us; /* RFC 1122 4.2.3.2; 0: acknowledge every burst */
  int timestamps;          /* RFC 7323; boolean */
  int sack;                /* RFC 2018; boolean */
  int window_scale;        /* RFC 7323: shift that is offered, 0-14; -1: option not sent */
  uint32_t sndbuf;         /* default send buffer of a socket, bytes */
  uint32_t rcvbuf;         /* default receive buffer, bytes */
  const char *cc;          /* congestion control: "cubic"; NULL: the default */
};

struct harp_stack_callbacks {
  void *user;
  /* One complete frame; the list is valid during the call. Must not call back
   * into the stack. */
  void (*output)(void *user, const struct iovec *iov, int count);
};

void harp_stack_config_default(struct harp_stack_config *config);

/* -EINVAL: a field is out of range; -ENOMEM. */
int harp_stack_create(struct harp_stack **stack, const struct harp_stack_config *config,
                      const struct harp_stack_callbacks *callbacks);
void harp_stack_destroy(struct harp_stack *stack);

/* One complete frame, copied where it has to wait. 0, or -EINVAL if it was
 * dropped as malformed (the counters say why). */
int harp_stack_input(struct harp_stack *stack, const void *frame, size_t length);

/* Sets the time, in nanoseconds of any monotonic clock, and runs what is due. */
void harp_stack_advance(struct harp_stack *stack, uint64_t now_ns);

/* When advance has something to do next; UINT64_MAX: never. */
uint64_t harp_stack_next_deadline(struct harp_stack *stack);

/* Sockets: small non-negative numbers. Nothing blocks: -EAGAIN, -EINPROGRESS. */
int harp_tcp_socket(struct harp_stack *stack);
int harp_tcp_bind(struct harp_stack *stack, int socket, const struct sockaddr *address,
                  socklen_t length);
int harp_tcp_listen(struct harp_stack *stack, int socket, int backlog);
int harp_tcp_accept(struct harp_stack *stack, int socket, struct sockaddr *address,
                    socklen_t *length);
int harp_tcp_connect(struct harp_stack *stack, int socket, const struct sockaddr *address,
                     socklen_t length);
int harp_tcp_shutdown(struct harp_stack *stack, int socket, int how);
int harp_tcp_close(struct harp_stack *stack, int socket);
int harp_tcp_getsockopt(struct harp_stack *stack, int socket, int level, int option, void *value,
                        socklen_t *length);
int harp_tcp_setsockopt(struct harp_stack *stack, int socket, int level, int option,
                        const void *value, socklen_t length);

/* A copying layer of bounded size over the pull interface that links use. */
ssize_t harp_tcp_send(struct harp_stack *stack, int socket, const void *data, size_t length,
                      int flags);
ssize_t harp_tcp_recv(struct harp_stack *stack, int socket, void *data, size_t length, int flags);

/* POLLIN | POLLOUT | POLLHUP | POLLRDHUP | POLLERR, or a negative errno. */
int harp_tcp_poll(struct harp_stack *stack, int socket);

#ifdef __cplusplus
}
#endif

#endif
