/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HARP's TCP/IP stack: one header and one static library (libharp_stack.a). It needs only the C
 * library.
 *
 * A stack is deterministic: two runs with the same calls send the same frames. It reads no clock:
 * its time is that of the last harp_stack_advance. Its only source of randomness is config.seed.
 * It allocates memory only at creation, takes no lock and logs nothing. It sends frames only
 * through its output callback.
 *
 * Thread: one thread at a time uses a stack; the caller ensures it. Errors: every function that
 * can fail returns a negative errno. Constants: socket levels, options, flags, poll bits and the
 * fields of struct tcp_info are Linux's (<netinet/tcp.h>, <sys/socket.h>, <poll.h>). Socket
 * options: SO_RCVBUF and SO_SNDBUF (not doubled), SO_LINGER, SO_KEEPALIVE, SO_ERROR, SO_TYPE,
 * SO_ACCEPTCONN, SO_REUSEADDR (always on); IP_TOS; TCP_NODELAY, TCP_CORK, TCP_MAXSEG,
 * TCP_CONGESTION, TCP_INFO, TCP_USER_TIMEOUT, TCP_KEEPIDLE, TCP_KEEPINTVL and TCP_KEEPCNT.
 * Accepted connections inherit the listener's options. The window scale is config.window_scale.
 * SO_RCVBUF before connect or listen changes it: a large buffer gets a larger scale, a small
 * buffer a smaller one. With config.window_scale -1 the stack sends no window scale option.
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

/* Fill it with harp_stack_config_default, then change single fields. */
struct harp_stack_config {
  size_t size;              /* sizeof(struct harp_stack_config), set by the caller */
  int link;                 /* enum harp_link_type */
  uint8_t mac[6];           /* own hardware address (HARP_LINK_ETHERNET) */
  uint32_t address;         /* own IPv4 address, network order */
  uint8_t prefix;           /* prefix length, bits, 0-32 */
  uint32_t gateway;         /* next hop outside the prefix, network order; 0: none */
  uint16_t mtu;             /* largest IPv4 packet, bytes, 576-65535 */
  uint64_t seed[2];         /* key of initial sequence numbers, ports, timestamps and hashes */
  uint32_t max_connections; /* one eighth of them (rounded down) is reserved for connect */
  uint32_t packets;         /* packet buffers for queued data, 2 KiB each */
  uint32_t initial_window;  /* initial congestion window, segments (RFC 6928) */
  uint32_t rto_initial_us;  /* first retransmission timeout (RFC 6298) */
  uint32_t rto_min_us;      /* floor of the RTO's RTTVAR term, as in Linux */
  uint32_t rto_max_us;      /* limit of the RTO, also after backoff */
  uint32_t delayed_ack_us;  /* RFC 1122, 4.2.3.2; 0: acknowledge every burst */
  int timestamps;           /* RFC 7323; boolean */
  int sack;                 /* RFC 2018; boolean */
  int window_scale;         /* RFC 7323: offered shift, 0-14; -1: option not sent */
  uint32_t sndbuf;          /* default send buffer of a socket, bytes */
  uint32_t rcvbuf;          /* default receive buffer, bytes */
  const char *cc;           /* congestion control: "cubic", "reno"; NULL: the default */
};

struct harp_stack_callbacks {
  void *user;
  /* Sends one complete frame. iov is valid during the call only. The callback must not call the
   * stack. */
  void (*output)(void *user, const struct iovec *iov, int count);
};

/* The caller must then set address, mac with HARP_LINK_ETHERNET, and seed. A seed must be random
 * and secret: whoever knows it can forge segments. */
void harp_stack_config_default(struct harp_stack_config *config);

/* -EINVAL: a field is out of range; -ENOMEM. */
int harp_stack_create(struct harp_stack **stack, const struct harp_stack_config *config,
                      const struct harp_stack_callbacks *callbacks);
void harp_stack_destroy(struct harp_stack *stack);

/* Receives one complete frame. The stack copies the bytes that it must keep. Returns 0, or -EINVAL
 * for a malformed or truncated frame; the rx_drop_* counters give the reason. */
int harp_stack_input(struct harp_stack *stack, const void *frame, size_t length);

/* Sets the time, in nanoseconds of any monotonic clock. Runs the expired timers and sends the due
 * segments. */
void harp_stack_advance(struct harp_stack *stack, uint64_t now_ns);

/* Returns the time at which harp_stack_advance is next needed, ns; UINT64_MAX: no timer runs. */
uint64_t harp_stack_next_deadline(struct harp_stack *stack);

/* Sockets are small non-negative numbers. No call blocks: calls return -EAGAIN or -EINPROGRESS
 * instead. All calls but the first return -EBADF for a number that is no socket. */

/* Returns a new socket's number. -EMFILE: there are 2 * max_connections + 16 sockets. */
int harp_tcp_socket(struct harp_stack *stack);
/* address: a struct sockaddr_in, with the stack's address or 0; port 0: any free port. -EINVAL:
 * length is too short, or the socket has a port; -EAFNOSUPPORT; -EADDRNOTAVAIL: another address;
 * -EADDRINUSE. */
int harp_tcp_bind(struct harp_stack *stack, int socket, const struct sockaddr *address,
                  socklen_t length);
/* Another call for a listener changes its backlog. -EINVAL: the socket connects or is connected;
 * -EADDRINUSE; -ENOBUFS: too many listeners. */
int harp_tcp_listen(struct harp_stack *stack, int socket, int backlog);
/* Returns the number of a connected socket. address may be NULL. -EINVAL: no listener; -EAGAIN: no
 * connection waits. */
int harp_tcp_accept(struct harp_stack *stack, int socket, struct sockaddr *address,
                    socklen_t *length);
/* -EINPROGRESS: the SYN is sent, and harp_tcp_poll shows the result. -EALREADY: the socket still
 * connects; -EISCONN: it was connected or listens. -EINVAL: length is too short, or address or port
 * is 0; -EAFNOSUPPORT; -EADDRINUSE; -ENETUNREACH: no gateway for the address; -ENOBUFS: no memory
 * for a connection. Any other error is that of the last attempt, and the next call begins a new
 * one. */
int harp_tcp_connect(struct harp_stack *stack, int socket, const struct sockaddr *address,
                     socklen_t length);
/* -EINVAL: how is not SHUT_RD, SHUT_WR or SHUT_RDWR; -ENOTCONN. */
int harp_tcp_shutdown(struct harp_stack *stack, int socket, int how);
/* The number is free at once. The stack sends the rest of the data and a FIN. It sends a RST
 * instead if received data is unread, or if SO_LINGER has the time 0. A listener also ends the
 * connections that nobody has accepted. */
int harp_tcp_close(struct harp_stack *stack, int socket);
/* *length: size of value, and then the bytes written. -ENOPROTOOPT: no such option. */
int harp_tcp_getsockopt(struct harp_stack *stack, int socket, int level, int option, void *value,
                        socklen_t *length);
/* -ENOPROTOOPT: no such option; -EINVAL: length is too short, or the value out of range; -ENOENT:
 * no such congestion control. */
int harp_tcp_setsockopt(struct harp_stack *stack, int socket, int level, int option,
                        const void *value, socklen_t length);

/* The two calls copy the data. SO_SNDBUF and SO_RCVBUF bound the copies. Both return the number of
 * bytes, which may be less than length, and once the error with which the connection has ended.
 * -EAGAIN: no room, no data, or the socket still connects; -ENOTCONN. */

/* Flags: MSG_MORE, MSG_DONTWAIT, MSG_NOSIGNAL; -EOPNOTSUPP: any other. -EPIPE: the sending side is
 * closed, or the connection has ended. */
ssize_t harp_tcp_send(struct harp_stack *stack, int socket, const void *data, size_t length,
                      int flags);
/* Flags: MSG_PEEK, MSG_DONTWAIT, MSG_NOSIGNAL, and MSG_WAITALL, which has no effect; -EINVAL: any
 * other. 0: the peer or SHUT_RD has closed this side. */
ssize_t harp_tcp_recv(struct harp_stack *stack, int socket, void *data, size_t length, int flags);

/* POLLIN | POLLOUT | POLLHUP | POLLRDHUP | POLLERR, or a negative errno. */
int harp_tcp_poll(struct harp_stack *stack, int socket);

/* Like harp_stack_input, for a frame into which a device or the kernel has merged several segments
 * (LRO, GRO). gso_size: payload bytes of each segment but the last, as in virtio_net_hdr; 0: a
 * single segment. The delayed-ACK rules count segments, not frames. */
int harp_stack_input_merged(struct harp_stack *stack, const void *frame, size_t length,
                            uint16_t gso_size);

/* The stack's counters, by index from 0. A name is a constant string; NULL: no such counter. The
 * old names of renamed counters follow the counters. */
const char *harp_stack_counter_name(unsigned int index);
uint64_t harp_stack_counter(struct harp_stack *stack, unsigned int index);

int harp_tcp_getsockname(struct harp_stack *stack, int socket, struct sockaddr *address,
                         socklen_t *length);
/* -ENOTCONN: the socket is not connected. */
int harp_tcp_getpeername(struct harp_stack *stack, int socket, struct sockaddr *address,
                         socklen_t *length);

/* SIOCINQ (FIONREAD): unread bytes. SIOCOUTQ (TIOCOUTQ): unacknowledged bytes; the FIN counts as
 * one. -EINVAL: another request, or a listener. */
int harp_tcp_ioctl(struct harp_stack *stack, int socket, unsigned long request, int *value);

/* Writes the numbers of at most max sockets whose harp_tcp_poll result may have changed. Each
 * socket appears once, and the oldest event comes first. Returns how many it wrote. It works like
 * edge-triggered epoll: only a new event lists a socket again, so the caller must read, accept or
 * send until -EAGAIN. A connection in an accept queue is not listed; harp_tcp_accept lists it. */
int harp_tcp_ready(struct harp_stack *stack, int *sockets, int max);

/*
 * The result of getsockopt(TCP_INFO): struct tcp_info of Linux 6.7 (<linux/tcp.h>; the struct in
 * <netinet/tcp.h> may be shorter). A shorter buffer gets the first fields. Times are in
 * microseconds; tcpi_last_* are milliseconds since the event. These fields are always 0, because
 * the stack does not measure them: fackets, last_ack_sent, rcv_rtt, pacing_rate, max_pacing_rate,
 * segs_out, segs_in, data_segs_in, data_segs_out, delivery_rate, sndbuf_limited,
 * delivered, delivered_ce, rehash, total_rto_time, delivery_rate_app_limited and
 * fastopen_client_fail. These fields differ from Linux's:
 *
 *   ato             config.delayed_ack_us
 *   reordering      always 3
 *   last_data_recv  since the last acceptable segment, with or without payload
 *   last_ack_recv   since the last acknowledgement of new data or of a closed window, or since data
 *                   was sent while none was in flight
 *   total_retrans   retransmissions, up to 64 KiB each
 *   pmtu            the peer's MSS option and 40 bytes, or the path MTU that ICMP has told
 */
struct harp_tcp_info {
  uint8_t tcpi_state; /* as numbered in <netinet/tcp.h> */
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
  uint32_t tcpi_advmss; /* the MSS option of our SYN */
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
  uint64_t tcpi_busy_time;    /* time with unacknowledged data */
  uint64_t tcpi_rwnd_limited; /* part of busy_time: waits for the peer's window */
  uint64_t tcpi_sndbuf_limited;
  uint32_t tcpi_delivered;
  uint32_t tcpi_delivered_ce;
  uint64_t tcpi_bytes_sent; /* payload, retransmissions included */
  uint64_t tcpi_bytes_retrans;
  uint32_t tcpi_dsack_dups; /* segments */
  uint32_t tcpi_reord_seen;
  uint32_t tcpi_rcv_ooopack;
  uint32_t tcpi_snd_wnd; /* bytes */
  uint32_t tcpi_rcv_wnd;
  uint32_t tcpi_rehash;
  uint16_t tcpi_total_rto; /* timeouts, including those of SYNs */
  uint16_t tcpi_total_rto_recoveries;
  uint32_t tcpi_total_rto_time;
};

#ifdef __cplusplus
}
#endif

#endif
