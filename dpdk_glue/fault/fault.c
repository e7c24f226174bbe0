/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "fault:SPEC|DEVICE": wraps another port and adds drops, duplicates, reordering, corruption,
 * delay, a rate limit or a blackhole; see fault_spec.h.
 *
 * Unimpaired frames pass without a copy. The port accepts no large segments unless tso=1, so each
 * fault hits a single packet, as on a wire. A dropped frame counts as sent, because a wire reports
 * no loss.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "dpdk_glue/clock.h"
#include "dpdk_glue/descriptor.h"
#include "dpdk_glue/fail.h"
#include "dpdk_glue/fault/fault_hold.h"
#include "dpdk_glue/fault/fault_lane.h"
#include "dpdk_glue/fault/fault_spec.h"
#include "dpdk_glue/frame_fields.h"
#include "dpdk_glue/port.h"

enum {
  FLOWS = 1024,                 /* number of local ports that flow= can select */
  CONTROL_PERIOD_NS = 10000000, /* interval between two looks at the control file */
  CONTROL_BYTES = 4096,
};

/* State of the control file when it was last read. */
struct fault_control {
  uint64_t looked_ns;
  ino_t inode;
  off_t size;
  struct timespec changed;
};

struct fault_queue {
  struct fault_spec spec; /* the spec in force */
  struct fault_control control;
  struct fault_lane tx, rx;
  struct fault_list delivered; /* copies that the last receive returned */
  struct fault_held held;
  int epoll_fd; /* watches the inner port's descriptor and the timer; -1: none */
  int timer_fd; /* wakes a sleeping poller for frames that become due */
};

struct fault_port {
  struct harp_port port;
  struct harp_port *inner;
  struct fault_spec base;         /* the spec in the device name */
  _Atomic uint16_t locals[FLOWS]; /* local ports in the order of their reservation */
  unsigned local_count;
  struct fault_mappings mappings;
  unsigned queue_count;
  struct fault_queue queues[];
};

static struct fault_port *fault_of(struct harp_port *port) { return (struct fault_port *)port; }

/* The control file's text overrides parts of the device's spec. A missing file restores the
 * device's spec. A file with an error changes nothing, because there is no way to report the
 * error at run time. */
static void read_control(const struct fault_port *fault, struct fault_queue *queue)
{
  char text[CONTROL_BYTES], error[HARP_PORT_ERROR_SIZE];
  struct fault_spec spec = fault->base;
  int fd = open(fault->base.control, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  ssize_t length = fd < 0 ? 0 : read(fd, text, sizeof(text));
  harp_descriptor_close(fd);
  if (length >= 0 && harp_fault_spec_parse(&spec, text, (size_t)length, true, error) == 0) {
    queue->spec = spec;
  }
}

static void look_at_control(const struct fault_port *fault, struct fault_queue *queue, uint64_t now)
{
  struct fault_control *control = &queue->control;
  if (!fault->base.control[0] ||
      (control->looked_ns && now - control->looked_ns < CONTROL_PERIOD_NS)) {
    return;
  }
  control->looked_ns = now;
  struct stat status = {0};
  if (stat(fault->base.control, &status) < 0) {
    memset(&status, 0, sizeof(status));
  }
  if (status.st_ino == control->inode && status.st_size == control->size &&
      status.st_mtim.tv_sec == control->changed.tv_sec &&
      status.st_mtim.tv_nsec == control->changed.tv_nsec) {
    return;
  }
  control->inode = status.st_ino;
  control->size = status.st_size;
  control->changed = status.st_mtim;
  read_control(fault, queue);
}

/* Tells whether the spec applies to this frame. */
static bool concerns(struct fault_port *fault, const struct fault_spec *spec, enum fault_side side,
                     const uint8_t *header, size_t length)
{
  if (!(spec->side & side)) {
    return false;
  }
  if (!spec->tcp_port && !spec->flow) {
    return true;
  }
  struct harp_tcp_fields peek;
  if (!harp_frame_tcp_fields(header, length, &peek)) {
    return false;
  }
  uint16_t local = side == FAULT_TX ? peek.source : peek.destination;
  uint16_t remote = side == FAULT_TX ? peek.destination : peek.source;
  if (spec->tcp_port && spec->tcp_port != local && spec->tcp_port != remote) {
    return false;
  }
  return !spec->flow ||
         atomic_load_explicit(&fault->locals[spec->flow - 1], memory_order_relaxed) == local;
}

static int pass_copy(struct fault_port *fault, unsigned queue, struct fault_frame *copy)
{
  struct iovec iov = {.iov_base = copy->bytes, .iov_len = copy->length};
  struct harp_tx_frame frame = {
      .iov = &iov,
      .iov_count = 1,
      .header_length = copy->header_length,
      .segment_size = copy->segment_size,
      .checksum_start = copy->checksum_start,
      .checksum_offset = copy->checksum_offset,
      .checksum_needed = copy->checksum_needed,
      .length = copy->length,
  };
  return fault->inner->ops->transmit(fault->inner, queue, &frame);
}

/* Sends the frames that are due. Stops when the device is full. */
static void send_due(struct fault_port *fault, unsigned queue, uint64_t now)
{
  struct fault_lane *lane = &fault->queues[queue].tx;
  struct fault_frame *frame;
  while ((frame = harp_fault_due(lane, now)) && pass_copy(fault, queue, frame) != -EAGAIN) {
    harp_fault_remove(lane, frame);
    free(frame);
  }
}

static int send_one(struct fault_port *fault, unsigned queue, const struct harp_tx_frame *frame,
                    const struct fault_verdict *verdict)
{
  if (!verdict->hold && !verdict->corrupt) {
    return fault->inner->ops->transmit(fault->inner, queue, frame);
  }
  struct fault_frame *copy = harp_fault_copy_tx(frame);
  if (!copy) {
    return -EAGAIN;
  }
  if (verdict->corrupt) {
    harp_fault_corrupt(copy, verdict->corrupt_at);
  }
  if (verdict->hold) {
    harp_fault_hold(&fault->queues[queue].tx, copy, verdict);
    return 0;
  }
  int rc = pass_copy(fault, queue, copy);
  free(copy);
  return rc;
}

static int fault_transmit(struct harp_port *port, unsigned queue, const struct harp_tx_frame *frame)
{
  struct fault_port *fault = fault_of(port);
  struct fault_queue *own = &fault->queues[queue];
  uint64_t now = harp_monotonic_ns();
  look_at_control(fault, own, now);
  send_due(fault, queue, now);
  if (!concerns(fault, &own->spec, FAULT_TX, frame->iov[0].iov_base, frame->iov[0].iov_len)) {
    return fault->inner->ops->transmit(fault->inner, queue, frame);
  }
  struct fault_verdict verdict = harp_fault_judge(&own->tx, &own->spec, frame->length, now);
  if (verdict.drop) {
    return 0;
  }
  int rc = send_one(fault, queue, frame, &verdict);
  if (rc == 0 && verdict.duplicate) {
    send_one(fault, queue, frame, &verdict); /* best effort: the frame itself is sent already */
  }
  if (rc == 0 && fault->base.hold_us) {
    harp_fault_keep(&own->held, &fault->mappings, frame, now + fault->base.hold_us * 1000);
  }
  return rc;
}

static void fault_flush(struct harp_port *port, unsigned queue)
{
  struct fault_port *fault = fault_of(port);
  uint64_t now = harp_monotonic_ns();
  send_due(fault, queue, now);
  harp_fault_let_go(&fault->queues[queue].held, now);
  fault->inner->ops->flush(fault->inner, queue);
}

/* The copy stays valid until the next receive. */
static void deliver(struct fault_queue *own, struct fault_frame *copy, struct harp_rx_frame *frame)
{
  copy->next = own->delivered.first;
  own->delivered.first = copy;
  *frame = (struct harp_rx_frame){
      .header = copy->bytes,
      .header_length = copy->length,
      .payload = copy->bytes + copy->length,
      .segment_size = copy->segment_size,
      .checksum_good = copy->checksum_good,
  };
}

static void free_delivered(struct fault_queue *own)
{
  while (own->delivered.first) {
    struct fault_frame *copy = own->delivered.first;
    own->delivered.first = copy->next;
    free(copy);
  }
}

/* Applies the faults to one received frame. Returns true if the caller must return *frame to the
 * stack. A duplicate goes into the lane and arrives with the next burst. */
static bool admit(struct fault_port *fault, struct fault_queue *own, struct harp_rx_frame *frame,
                  uint64_t now)
{
  if (!concerns(fault, &own->spec, FAULT_RX, frame->header, frame->header_length)) {
    return true;
  }
  struct fault_verdict verdict =
      harp_fault_judge(&own->rx, &own->spec, frame->header_length + frame->payload_length, now);
  if (verdict.drop) {
    return false;
  }
  bool keep = !verdict.hold;
  for (int copies = verdict.duplicate + (verdict.corrupt || verdict.hold); copies > 0; copies--) {
    struct fault_frame *copy = harp_fault_copy_rx(frame);
    if (!copy) {
      return keep && !verdict.corrupt;
    }
    if (verdict.corrupt) {
      harp_fault_corrupt(copy, verdict.corrupt_at);
    }
    if (keep && verdict.corrupt && copies == 1) {
      deliver(own, copy, frame);
    } else {
      harp_fault_hold(&own->rx, copy, &verdict);
    }
  }
  return keep;
}

/* Returns due frames, from frames[n] up to below end. Returns the new n. */
static int take_due(struct fault_queue *own, struct harp_rx_frame *frames, int n, int end,
                    uint64_t now)
{
  struct fault_frame *due;
  while (n < end && (due = harp_fault_due(&own->rx, now))) {
    harp_fault_remove(&own->rx, due);
    deliver(own, due, &frames[n++]);
  }
  return n;
}

/* The inner port stores its frames after a gap in the array. The gap has room for the late
 * frames that come in between. */
static int fault_receive(struct harp_port *port, unsigned queue, const struct harp_rx_hint *hint,
                         struct harp_rx_frame *frames, int max)
{
  struct fault_port *fault = fault_of(port);
  struct fault_queue *own = &fault->queues[queue];
  uint64_t now = harp_monotonic_ns();
  look_at_control(fault, own, now);
  send_due(fault, queue, now);
  free_delivered(own);
  int n = take_due(own, frames, 0, max, now);
  if (n == max) {
    return n;
  }
  int late = (int)own->rx.late_count < max - n - 1 ? (int)own->rx.late_count : max - n - 1;
  int begin = n + late;
  int arrived = fault->inner->ops->receive(fault->inner, queue, hint, frames + begin, max - begin);
  if (arrived < 0) {
    return n ? n : arrived;
  }
  for (int i = begin; i < begin + arrived; i++) {
    if (admit(fault, own, &frames[i], now)) {
      frames[n++] = frames[i];
    }
    n = take_due(own, frames, n, i + 1, now);
  }
  return n;
}

static int fault_descriptor(struct harp_port *port, unsigned queue)
{
  return fault_of(port)->queues[queue].epoll_fd;
}

/* Sets the timer, and clears an expiration that was not read. */
static void set_timer(struct fault_queue *own, uint64_t due)
{
  struct itimerspec at = {0};
  if (due != UINT64_MAX) {
    at.it_value.tv_sec = (time_t)(due / 1000000000);
    at.it_value.tv_nsec = (long)(due % 1000000000);
  }
  timerfd_settime(own->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

static int fault_arm(struct harp_port *port, unsigned queue, bool asleep)
{
  struct fault_port *fault = fault_of(port);
  struct fault_queue *own = &fault->queues[queue];
  if (asleep) {
    uint64_t now = harp_monotonic_ns();
    uint64_t tx = harp_fault_next_due(&own->tx), rx = harp_fault_next_due(&own->rx);
    uint64_t next = tx < rx ? tx : rx, held = harp_fault_held_until(&own->held);
    next = held && held < next ? held : next;
    if (next <= now || harp_fault_due(&own->tx, now) || harp_fault_due(&own->rx, now)) {
      return 1;
    }
    set_timer(own, next);
  }
  return fault->inner->ops->arm(fault->inner, queue, asleep);
}

static int fault_reserve(struct harp_port *port, unsigned queue, uint16_t wanted, uint16_t *local)
{
  struct fault_port *fault = fault_of(port);
  int rc = fault->inner->ops->reserve(fault->inner, queue, wanted, local);
  if (rc == 0) {
    atomic_store_explicit(&fault->locals[fault->local_count++ % FLOWS], *local,
                          memory_order_relaxed);
  }
  return rc;
}

static void fault_release(struct harp_port *port, unsigned queue, uint16_t local)
{
  struct fault_port *fault = fault_of(port);
  fault->inner->ops->release(fault->inner, queue, local);
}

/* Delayed frames are copies. Only the inner port and hold_us keep references. */
static int fault_dma_map(struct harp_port *port, uintptr_t start, uintptr_t end)
{
  struct fault_port *fault = fault_of(port);
  int rc = harp_fault_mapping_add(&fault->mappings, start, end);
  if (rc == 0 && fault->inner->ops->dma_map) {
    rc = fault->inner->ops->dma_map(fault->inner, start, end);
    if (rc < 0) {
      harp_fault_mapping_remove(&fault->mappings, start, end);
    }
  }
  return rc;
}

static void fault_dma_revoke(struct harp_port *port, uintptr_t start, uintptr_t end)
{
  struct fault_port *fault = fault_of(port);
  harp_fault_mapping_remove(&fault->mappings, start, end);
  if (fault->inner->ops->dma_revoke) {
    fault->inner->ops->dma_revoke(fault->inner, start, end);
  }
}

static void fault_dma_unmap_deferred(struct harp_port *port)
{
  struct harp_port *inner = fault_of(port)->inner;
  if (inner->ops->dma_unmap_deferred) {
    inner->ops->dma_unmap_deferred(inner);
  }
}

static int fault_reclaim(struct harp_port *port, unsigned queue, uint32_t timeout_us)
{
  struct fault_port *fault = fault_of(port);
  struct fault_held *held = &fault->queues[queue].held;
  uint64_t end = harp_monotonic_ns() + timeout_us * UINT64_C(1000);
  for (uint64_t until; (until = harp_fault_held_until(held));
       harp_fault_let_go(held, harp_monotonic_ns())) {
    if (until > end) {
      return -ETIMEDOUT;
    }
    struct timespec at = {(time_t)(until / 1000000000), (long)(until % 1000000000)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
  }
  return fault->inner->ops->reclaim(fault->inner, queue, timeout_us);
}

static bool fault_has_carrier(struct harp_port *port)
{
  return harp_port_has_carrier(fault_of(port)->inner);
}

static void fault_count(struct harp_port *port, unsigned queue, uint64_t *counters)
{
  struct fault_port *fault = fault_of(port);
  fault->inner->ops->count(fault->inner, queue, counters);
}

static void close_queue(struct fault_queue *own)
{
  harp_fault_lane_clear(&own->tx);
  harp_fault_lane_clear(&own->rx);
  free_delivered(own);
  harp_descriptor_close(own->epoll_fd);
  harp_descriptor_close(own->timer_fd);
}

static void fault_close(struct harp_port *port)
{
  struct fault_port *fault = fault_of(port);
  for (unsigned q = 0; q < fault->queue_count; q++) {
    close_queue(&fault->queues[q]);
  }
  harp_port_close(fault->inner);
  harp_fault_mappings_clear(&fault->mappings);
  free(fault);
}

static int open_queue(struct fault_port *fault, unsigned q, char *error)
{
  struct fault_queue *own = &fault->queues[q];
  own->spec = fault->base;
  own->epoll_fd = own->timer_fd = -1;
  harp_fault_lane_init(&own->tx, fault->base.seed, q * 2);
  harp_fault_lane_init(&own->rx, fault->base.seed, q * 2 + 1);
  fault->queue_count = q + 1;
  int inner = fault->inner->ops->descriptor(fault->inner, q);
  own->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  own->epoll_fd = inner < 0 ? -1 : epoll_create1(EPOLL_CLOEXEC);
  if (own->timer_fd < 0 ||
      (inner >= 0 && (own->epoll_fd < 0 || !harp_descriptor_watch(own->epoll_fd, inner) ||
                      !harp_descriptor_watch(own->epoll_fd, own->timer_fd)))) {
    return harp_port_fail(error, -errno,
                          "fault: cannot make a timer: %s; raise the limit of open "
                          "files (ulimit -n)",
                          strerror(errno));
  }
  return 0;
}

static void describe(struct fault_port *fault, const char *spec, size_t spec_length)
{
  struct harp_port_info *info = &fault->port.info;
  *info = fault->inner->info;
  if (!fault->base.tso) {
    info->offloads &= ~HARP_OFFLOAD_TSO;
    info->max_frame = ETH_HEADER + (uint32_t)info->mtu;
  }
  snprintf(info->summary, sizeof(info->summary), "fault (%.*s) over %.100s", (int)spec_length, spec,
           fault->inner->info.summary);
}

static int fault_open(struct harp_port **port, const struct harp_port_config *config, char *error)
{
  const char *bar = strchr(config->device, '|');
  if (!bar) {
    return harp_port_fail(error, -EINVAL,
                          "fault:%.150s: no device; write fault:SPEC|DEVICE, as "
                          "in fault:drop=0.01|packet:eth0",
                          config->device);
  }
  size_t spec_length = (size_t)(bar - config->device);
  struct fault_port *fault = calloc(1,
                                    sizeof(*fault) + config->queues * sizeof(struct fault_queue));
  if (!fault) {
    return harp_port_fail(error, -ENOMEM, "fault:%.150s: out of memory", config->device);
  }
  fault->port.ops = &harp_port_fault;
  harp_fault_mappings_init(&fault->mappings);
  harp_fault_spec_default(&fault->base);
  int rc = harp_fault_spec_parse(&fault->base, config->device, spec_length, false, error);
  if (rc == 0) {
    rc = harp_port_open(&fault->inner, bar + 1, config, error);
  }
  for (unsigned q = 0; rc == 0 && q < config->queues; q++) {
    rc = open_queue(fault, q, error);
  }
  if (rc < 0) {
    fault_close(&fault->port);
    return rc;
  }
  describe(fault, config->device, spec_length);
  *port = &fault->port;
  return 0;
}

static int fault_start(struct harp_port *port, char *error)
{
  return harp_port_start(fault_of(port)->inner, error);
}

static void fault_forget(struct harp_port *port)
{
  struct harp_port *inner = fault_of(port)->inner;
  inner->ops->forget(inner);
}

const struct harp_port_ops harp_port_fault = {
    .scheme = "fault",
    .open = fault_open,
    .start = fault_start,
    .close = fault_close,
    .forget = fault_forget,
    .receive = fault_receive,
    .transmit = fault_transmit,
    .flush = fault_flush,
    .descriptor = fault_descriptor,
    .arm = fault_arm,
    .reserve = fault_reserve,
    .release = fault_release,
    .dma_map = fault_dma_map,
    .dma_revoke = fault_dma_revoke,
    .dma_unmap_deferred = fault_dma_unmap_deferred,
    .reclaim = fault_reclaim,
    .has_carrier = fault_has_carrier,
    .count = fault_count,
};
