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
 * Options of sockets: SO_RCVBUF and SO_SNDBUF (not doubled), SO_LINGER, SO_KEEPALIVE, SO_ERROR,
 * SO_TYPE, SO_ACCEPTCONN, SO_REUSEADDR (always so); IP_TOS; TCP_NODELAY, TCP_CORK, TCP_MAXSEG,
 * TCP_CONGESTION, TCP_INFO, TCP_USER_TIMEOUT, TCP_KEEPIDLE, TCP_KEEPINTVL and TCP_KEEPCNT.
 * Connections of a listener inherit them. With SO_RCVBUF before connect or listen the window scale
 * is config.window_scale, more where that buffer needs it and less where it is small; with -1
 * there none is sent.
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
  size_t size;              /* sizeof(struct harp_stack_config) of the caller */
  int link;                 /* enum harp_link_type */
  uint8_t mac[6];           /* own hardware address (HARP_LINK_ETHERNET) */
  uint32_t address;         /* own IPv4 address, network order */
  uint8_t prefix;           /* length of the address's prefix, bits, 0-32 */
  uint32_t gateway;         /* next hop outside the prefix, network order; 0: none */
  uint16_t mtu;             /* largest IPv4 packet, bytes, 576-65535 */
  uint64_t seed[2];         /* key of initial sequence numbers, ports and timestamps */
  uint32_t max_connections; /* from 8 on an eighth is kept from those that peers begin */
  uint32_t packets;         /* packet buffers for data that waits, 2 KiB each */
  uint32_t initial_window;  /* congestion window at the start, segments (RFC 6928) */
  uint32_t rto_initial_us;  /* RFC 6298 */
  uint32_t rto_min_us;      /* least of the timeout beyond the smoothed round trip, as in Linux */
  uint32_t rto_max_us;
  uint32_t delayed_ack_us; /* RFC 1122 4.2.3.2; 0: acknowledge every burst */
  int timestamps;          /* RFC 7323; boolean */
  int sack;                /* RFC 2018; boolean */
  int window_scale;        /* RFC 7323: shift that is offered, 0-14; -1: option not sent */
  uint32_t sndbuf;         /* default send buffer of a socket, bytes */
  uint32_t rcvbuf;         /* default receive buffer, bytes */
  const char *cc;          /* congestion control: "cubic", "reno"; NULL: the default */
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

/* A copying layer of bounded size over the pull interface that links use. Flags: MSG_MORE,
 * MSG_PEEK, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_WAITALL (which makes nothing wait); -EOPNOTSUPP or
 * -EINVAL: another one. */
ssize_t harp_tcp_send(struct harp_stack *stack, int socket, const void *data, size_t length,
                      int flags);
ssize_t harp_tcp_recv(struct harp_stack *stack, int socket, void *data, size_t length, int flags);

/* POLLIN | POLLOUT | POLLHUP | POLLRDHUP | POLLERR, or a negative errno. */
int harp_tcp_poll(struct harp_stack *stack, int socket);

/* Like harp_stack_input, for a frame into which a device or the kernel has merged several segments
 * (LRO, GRO). gso_size: payload bytes of each but the last, as virtio_net_hdr says; 0: it is a
 * single one. Acknowledgements go by segments, and not by frames. */
int harp_stack_input_merged(struct harp_stack *stack, const void *frame, size_t length,
                            uint16_t gso_size);

/* The stack's counters, by index from 0. A name is valid for ever; NULL: there are no more. */
const char *harp_stack_counter_name(unsigned int index);
uint64_t harp_stack_counter(struct harp_stack *stack, unsigned int index);

/* -ENOTCONN: no peer, or no longer. */
int harp_tcp_getsockname(struct harp_stack *stack, int socket, struct sockaddr *address,
                         socklen_t *length);
int harp_tcp_getpeername(struct harp_stack *stack, int socket, struct sockaddr *address,
                         socklen_t *length);

/* SIOCINQ (FIONREAD): bytes that wait to be read. SIOCOUTQ (TIOCOUTQ): bytes, and the FIN, that
 * are not acknowledged. -EINVAL: another request, or a listener. */
int harp_tcp_ioctl(struct harp_stack *stack, int socket, unsigned long request, int *value);

/* Writes the numbers of at most max sockets for which harp_tcp_poll may tell something new: each
 * once, in the order in which it happened. Returns how many. As with edge-triggered epoll, whoever
 * is listed is listed again when more happens: read, accept or send until -EAGAIN. A connection in
 * an accept queue is listed once it has been accepted. */
int harp_tcp_ready(struct harp_stack *stack, int *sockets, int max);

/*
 * What getsockopt gives for TCP_INFO: Linux's struct tcp_info of 6.7 (<linux/tcp.h>; that of
 * <netinet/tcp.h> may end sooner), which may be asked for in part. Times are microseconds, and
 * those called last are milliseconds ago. Always 0, since the stack does not know or has none:
 * fackets, last_ack_sent, rcv_rtt, pacing_rate, max_pacing_rate, segs_out, segs_in, data_segs_in,
 * data_segs_out, delivery_rate, rwnd_limited, sndbuf_limited, delivered, delivered_ce, rehash,
 * total_rto_time, delivery_rate_app_limited and fastopen_client_fail.
 */
struct harp_tcp_info {
  uint8_t tcpi_state; /* as <netinet/tcp.h> numbers them */
  uint8_t tcpi_ca_state;
  uint8_t tcpi_retransmits;
  uint8_t tcpi_probes;
  uint8_t tcpi_backoff;
  uint8_t tcpi_options; /* TCPI_OPT_TIMESTAMPS | TCPI_OPT_SACK | TCPI_OPT_WSCALE */
  uint8_t tcpi_snd_wscale : 4, tcpi_rcv_wscale : 4;
  uint8_t tcpi_delivery_rate_app_limited : 1, tcpi_fastopen_client_fail : 2;
  uint32_t tcpi_rto;
  uint32_t tcpi_ato;
  uint32_t tcpi_snd_mss; /* bytes */
  uint32_t tcpi_rcv_mss;
  uint32_t tcpi_unacked; /* segments */
  uint32_t tcpi_sacked;
  uint32_t tcpi_lost;
  uint32_t tcpi_retrans;
  uint32_t tcpi_fackets;
  uint32_t tcpi_last_data_sent;
  uint32_t tcpi_last_ack_sent;
  uint32_t tcpi_last_data_recv;
  uint32_t tcpi_last_ack_recv;
  uint32_t tcpi_pmtu;
  uint32_t tcpi_rcv_ssthresh;
  uint32_t tcpi_rtt;
  uint32_t tcpi_rttvar;
  uint32_t tcpi_snd_ssthresh; /* segments */
  uint32_t tcpi_snd_cwnd;
  uint32_t tcpi_advmss; /* what our SYN has offered */
  uint32_t tcpi_reordering;
  uint32_t tcpi_rcv_rtt;
  uint32_t tcpi_rcv_space;
  uint32_t tcpi_total_retrans;
  uint64_t tcpi_pacing_rate;
  uint64_t tcpi_max_pacing_rate;
  uint64_t tcpi_bytes_acked;
  uint64_t tcpi_bytes_received;
  uint32_t tcpi_segs_out;
  uint32_t tcpi_segs_in;
  uint32_t tcpi_notsent_bytes;
  uint32_t tcpi_min_rtt;
  uint32_t tcpi_data_segs_in;
  uint32_t tcpi_data_segs_out;
  uint64_t tcpi_delivery_rate;
  uint64_t tcpi_busy_time; /* that something was in flight */
  uint64_t tcpi_rwnd_limited;
  uint64_t tcpi_sndbuf_limited;
  uint32_t tcpi_delivered;
  uint32_t tcpi_delivered_ce;
  uint64_t tcpi_bytes_sent; /* payload, with what was sent again */
  uint64_t tcpi_bytes_retrans;
  uint32_t tcpi_dsack_dups; /* segments */
  uint32_t tcpi_reord_seen;
  uint32_t tcpi_rcv_ooopack;
  uint32_t tcpi_snd_wnd; /* bytes */
  uint32_t tcpi_rcv_wnd;
  uint32_t tcpi_rehash;
  uint16_t tcpi_total_rto; /* timeouts, those of SYNs among them */
  uint16_t tcpi_total_rto_recoveries;
  uint32_t tcpi_total_rto_time;
};

#ifdef __cplusplus
}
#endif

#endif
