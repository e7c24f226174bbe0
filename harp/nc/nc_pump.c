/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/nc/nc_pump.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harp/engine/clock.h"
#include "harp/time_units.h"

enum {
  BUFFER = 256 * 1024, /* bytes in each direction; fits in a core's cache */
  STEPS = 32,          /* steps between two polls; more than one burst of frames needs */
};

#define LAST_ACK_NS (10 * NS_PER_S)     /* wait for the last acknowledgement from a silent peer */
#define TIME_WAIT_MAX_NS (1 * NS_PER_S) /* upper bound of the time in TIME-WAIT */

static struct harp_stack *stack_of(const struct nc_pump *pump) { return pump->nc->instance->stack; }

static bool empty(const struct nc_buffer *buffer) { return buffer->start == buffer->end; }

static void filled(struct nc_buffer *buffer, size_t length)
{
  buffer->start = 0;
  buffer->end = length;
}

/* --- Errors --- */

static int connection_failed(const struct nc_pump *pump, int error)
{
  const char *peer = nc_endpoint(pump->nc->peer);
  unsigned long long out = pump->bytes_out, in = pump->bytes_in;
  switch (error) {
  case ECONNRESET:
  case EPIPE:
    return nc_fail("%s reset the connection after %llu bytes to it and %llu from it: check the "
                   "peer for the reason",
                   peer, out, in);
  case ETIMEDOUT:
    return nc_fail("%s stopped answering after %llu bytes to it and %llu from it: check the peer "
                   "and the path to it",
                   peer, out, in);
  default:
    return nc_fail("%s: the connection failed after %llu bytes to it and %llu from it: %s; see "
                   "harp nc -v",
                   peer, out, in, strerror(error));
  }
}

static int stream_failed(const char *which, ssize_t result)
{
  if (result == -EPIPE) {
    return nc_fail("%s: the reader closed it early; let it read to the end", which);
  }
  return nc_fail("%s: %s; check what it is redirected to", which, strerror((int)-result));
}

/* --- One step in one direction. 1: moved; 0: nothing to do; -1: failed and printed. --- */

static int read_input(struct nc_pump *pump)
{
  if (!(harp_tcp_poll(stack_of(pump), pump->nc->socket) & POLLOUT)) {
    return 0;
  }
  ssize_t got = nc_stream_read(&pump->input, pump->to_peer.data, BUFFER);
  if (got == -EAGAIN) {
    return 0;
  }
  if (got < 0) {
    stream_failed("standard input", got);
    return -1;
  }
  pump->input_ended = got == 0;
  filled(&pump->to_peer, (size_t)got);
  return 1;
}

static int send_buffer(struct nc_pump *pump)
{
  struct nc_buffer *buffer = &pump->to_peer;
  ssize_t sent = harp_tcp_send(stack_of(pump), pump->nc->socket, buffer->data + buffer->start,
                               buffer->end - buffer->start, 0);
  if (sent == -EAGAIN) {
    return 0;
  }
  if (sent < 0) {
    connection_failed(pump, (int)-sent);
    return -1;
  }
  buffer->start += (size_t)sent;
  pump->bytes_out += (size_t)sent;
  return 1;
}

static int shut_down(struct nc_pump *pump)
{
  int result = harp_tcp_shutdown(stack_of(pump), pump->nc->socket, SHUT_WR);
  if (result != 0) {
    int error = 0;
    socklen_t length = sizeof error;
    harp_tcp_getsockopt(stack_of(pump), pump->nc->socket, SOL_SOCKET, SO_ERROR, &error, &length);
    connection_failed(pump, error ? error : -result);
    return -1;
  }
  pump->shut = true;
  return 1;
}

static int step_out(struct nc_pump *pump)
{
  if (!empty(&pump->to_peer)) {
    return send_buffer(pump);
  }
  if (!pump->input_ended) {
    return read_input(pump);
  }
  return pump->shut ? 0 : shut_down(pump);
}

static int write_output(struct nc_pump *pump)
{
  struct nc_buffer *buffer = &pump->to_output;
  ssize_t done = nc_stream_write(&pump->output, buffer->data + buffer->start,
                                 buffer->end - buffer->start);
  if (done == -EAGAIN) {
    return 0;
  }
  if (done < 0) {
    stream_failed("standard output", done);
    return -1;
  }
  buffer->start += (size_t)done;
  pump->bytes_in += (size_t)done;
  return 1;
}

static int step_in(struct nc_pump *pump)
{
  if (!empty(&pump->to_output)) {
    return write_output(pump);
  }
  if (pump->peer_ended) {
    return 0;
  }
  ssize_t got = harp_tcp_recv(stack_of(pump), pump->nc->socket, pump->to_output.data, BUFFER, 0);
  if (got == -EAGAIN) {
    return 0;
  }
  if (got < 0) {
    connection_failed(pump, (int)-got);
    return -1;
  }
  pump->peer_ended = got == 0;
  filled(&pump->to_output, (size_t)got);
  return 1;
}

/* --- Time --- */

/* Returns the time of the last progress: a byte moved or an acknowledgement arrived. */
static uint64_t last_sign(const struct nc_pump *pump, uint64_t now)
{
  uint64_t quiet = pump->info.tcpi_last_ack_recv * NS_PER_MS;
  uint64_t sign = now > quiet ? now - quiet : 0;
  return sign > pump->moved_ns ? sign : pump->moved_ns;
}

/* Both sides have sent all data; only acknowledgements are missing. */
static bool only_closing(const struct nc_pump *pump)
{
  return pump->shut && pump->peer_ended && empty(&pump->to_output);
}

static uint64_t timeout_of(const struct nc_pump *pump)
{
  uint64_t user = pump->nc->options->timeout_s * NS_PER_S;
  if (only_closing(pump) && (user == 0 || user > LAST_ACK_NS)) {
    return LAST_ACK_NS;
  }
  return user ? user : UINT64_MAX;
}

static uint64_t deadline_of(const struct nc_pump *pump, uint64_t now)
{
  uint64_t most = timeout_of(pump);
  return most == UINT64_MAX ? most : last_sign(pump, now) + most;
}

static int timed_out(const struct nc_pump *pump)
{
  unsigned seconds = (unsigned)(timeout_of(pump) / NS_PER_S);
  const char *peer = nc_endpoint(pump->nc->peer);
  if (only_closing(pump)) {
    return nc_fail("%s has not acknowledged the last bytes within %u s: check the data that "
                   "arrived there",
                   peer, seconds);
  }
  return nc_fail("%s: no progress for %u s, after %llu bytes to it and %llu from it: check "
                 "the peer, or raise -w",
                 peer, seconds, (unsigned long long)pump->bytes_out,
                 (unsigned long long)pump->bytes_in);
}

/* --- The loop --- */

static void look(struct nc_pump *pump)
{
  struct tcp_info info;
  socklen_t length = sizeof info;
  harp_tcp_getsockopt(stack_of(pump), pump->nc->socket, IPPROTO_TCP, TCP_INFO, &info, &length);
  if (info.tcpi_state == TCP_CLOSE) {
    pump->info.tcpi_state = TCP_CLOSE; /* the other fields keep their last values */
  } else {
    pump->info = info;
  }
}

static bool over(const struct nc_pump *pump)
{
  uint8_t state = pump->info.tcpi_state;
  return only_closing(pump) && (state == TCP_TIME_WAIT || state == TCP_CLOSE);
}

static void wait_for_more(struct nc_pump *pump)
{
  bool may_read = empty(&pump->to_peer) && !pump->input_ended &&
                  harp_tcp_poll(stack_of(pump), pump->nc->socket) & POLLOUT;
  bool may_write = !empty(&pump->to_output);
  struct pollfd fds[2] = {
      {.fd = may_read ? pump->input.fd : -1, .events = POLLIN},
      {.fd = may_write ? pump->output.fd : -1, .events = POLLOUT},
  };
  nc_wait(pump->nc, fds, 2, deadline_of(pump, harp_clock_ns()));
}

/* RFC 9293, 3.6.1: the side that closed first stays in TIME-WAIT to answer a retransmitted FIN.
 * A program cannot stay for minutes. One retransmission timeout covers a single loss of the last
 * ACK. After that the owner of the address answers. */
static void linger(struct nc_pump *pump)
{
  uint64_t rto = pump->info.tcpi_rto * 1000ull * 3 / 2;
  uint64_t until = harp_clock_ns() + (rto < TIME_WAIT_MAX_NS ? rto : TIME_WAIT_MAX_NS);
  while (pump->info.tcpi_state == TCP_TIME_WAIT && harp_clock_ns() < until && !nc_signal()) {
    if (!nc_poll(pump->nc)) {
      nc_wait(pump->nc, NULL, 0, until);
    }
  }
}

/* Repeats a step while it moves something. A burst's data thus leaves the stack before the next
 * burst, so that only a slow reader closes the window. */
static int repeat(int (*step)(struct nc_pump *pump), struct nc_pump *pump)
{
  int result = step(pump), moved = result;
  for (int i = 1; i < STEPS && result > 0; i++) {
    result = step(pump);
  }
  return result < 0 ? result : moved;
}

static int move(struct nc_pump *pump)
{
  while (!over(pump)) {
    bool worked = nc_poll(pump->nc);
    int in = repeat(step_in, pump);
    uint64_t now = harp_clock_ns();
    /* The write may have taken long, so the stack needs the current time before it sends. */
    harp_stack_set_time(stack_of(pump), now);
    int out = in < 0 ? in : step_out(pump);
    if (out < 0 || nc_signal()) {
      return NC_FAILED;
    }
    if (in + out > 0) {
      pump->moved_ns = now;
      worked = true;
    }
    look(pump);
    if (deadline_of(pump, now) <= now) {
      return timed_out(pump);
    }
    if (!worked && !over(pump)) {
      wait_for_more(pump);
    }
  }
  return NC_WELL;
}

int nc_pump_run(struct nc_pump *pump, struct nc *nc)
{
  uint64_t now = harp_clock_ns();
  *pump = (struct nc_pump){
      .nc = nc,
      .input = nc_stream_input(STDIN_FILENO),
      .output = nc_stream_output(STDOUT_FILENO),
      .to_peer.data = malloc(BUFFER),
      .to_output.data = malloc(BUFFER),
      .began_ns = now,
      .moved_ns = now,
      .info.tcpi_state = TCP_ESTABLISHED,
  };
  if (!pump->to_peer.data || !pump->to_output.data) {
    return nc_fail("no memory for %d bytes each way: free some", BUFFER);
  }
  int status = move(pump);
  if (status == NC_WELL) {
    linger(pump);
    harp_tcp_close(stack_of(pump), nc->socket);
    nc->socket = -1;
  }
  return status;
}

void nc_pump_close(struct nc_pump *pump)
{
  nc_stream_close(&pump->input);
  nc_stream_close(&pump->output);
  free(pump->to_peer.data);
  free(pump->to_output.data);
}
