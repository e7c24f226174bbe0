/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A port in a process of its own, driven line by line by the tests.
 *
 * Each line of standard input is a command. The last line of each answer begins with "ok" or "error
 * NUMBER". Numbers are decimal, frames are hex.
 *
 *   open DEVICE QUEUES ADDRESS/PREFIX|- MTU FIRST-LAST MAC|-
 *   send QUEUE HEADER SEGMENT SUM_START SUM_OFFSET NEEDED PIECES HEX
 *   flush QUEUE
 *   receive QUEUE MOST TIMEOUT_MS HINT_HEADER HINT_LENGTH HINT_STRIDE
 *   arm QUEUE 0|1        wait QUEUE TIMEOUT_MS
 *   reserve QUEUE PORT   release QUEUE PORT   count QUEUE
 *   blast QUEUE MILLISECONDS HEADER SEGMENT SUM_START SUM_OFFSET HEX
 *   drain QUEUE MILLISECONDS HINT_HEADER HINT_STRIDE [COPY]
 *   dma_map | dma_revoke | dma_unmap_deferred
 *   hold                 reclaim QUEUE MICROSECONDS
 *   close                use NUMBER          fork MILLISECONDS
 *
 * HARP_AGENT names the socket of an agent that opens the device.
 *
 * A probe has two ports; use selects one for the next commands. wait polls the descriptor. The
 * commands dma_* call the port's functions for the memory of the sent frames. hold (with DPDK;
 * holder.c) makes devices keep frames. blast sends one frame repeatedly. drain receives and drops,
 * starting with the first frame; COPY 1: it copies the payload first. fork makes a
 * child that forgets the port and then lives for a while.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "dpdk_glue/port.h"
#include "harp/counters.h"

enum { PAGE = 4096, FRAME_ROOM = 70000, BURST = 32, PIECES = 300, HINT_ROOM = 4 * 1024 * 1024 };

__attribute__((weak)) int probe_hold(void); /* NULL in a build without DPDK */

static struct harp_port *ports[2];
static unsigned current;
#define port (ports[current]) /* the port of the next commands */
static _Alignas(PAGE) uint8_t frame_bytes[(FRAME_ROOM + PAGE - 1) / PAGE * PAGE];
static uint8_t hint_bytes[HINT_ROOM];

static uint64_t now_ms(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* CPU time of the process. It distinguishes a busy machine from a slow path. */
static uint64_t cpu_ms(void)
{
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void answer(int rc)
{
  if (rc < 0) {
    printf("error %d %s\n", -rc, strerror(-rc));
  } else {
    printf("ok %d\n", rc);
  }
}

static uint8_t nibble(char c) { return (uint8_t)(c <= '9' ? c - '0' : c - 'a' + 10); }

static uint32_t read_hex(const char *text)
{
  uint32_t length = 0;
  for (; text[0] > ' ' && text[1] > ' ' && length < FRAME_ROOM; text += 2) {
    frame_bytes[length++] = (uint8_t)(nibble(text[0]) << 4 | nibble(text[1]));
  }
  return length;
}

static void print_hex(const uint8_t *data, size_t length)
{
  static const char digits[] = "0123456789abcdef";
  for (size_t i = 0; i < length; i++) {
    putchar(digits[data[i] >> 4]);
    putchar(digits[data[i] & 15]);
  }
}

static void read_mac(const char *text, uint8_t *mac)
{
  unsigned part[6];
  if (sscanf(text, "%x:%x:%x:%x:%x:%x", &part[0], &part[1], &part[2], &part[3], &part[4],
             &part[5]) == 6) {
    for (int i = 0; i < 6; i++) {
      mac[i] = (uint8_t)part[i];
    }
  }
}

static void do_open(const char *line)
{
  char device[400], address[64], mac[32], error[HARP_PORT_ERROR_SIZE];
  unsigned queues, mtu, first, last;
  struct harp_port_config config = {0};
  if (sscanf(line, "open %399s %u %63s %u %u-%u %31s", device, &queues, address, &mtu, &first,
             &last, mac) != 7) {
    answer(-EINVAL);
    return;
  }
  char *slash = strchr(address, '/');
  if (slash) {
    *slash = '\0';
    inet_pton(AF_INET, address, &config.address);
    config.prefix = (uint8_t)atoi(slash + 1);
  }
  config.queues = (uint16_t)queues;
  config.mtu = (uint16_t)mtu;
  config.ports_first = (uint16_t)first;
  config.ports_last = (uint16_t)last;
  read_mac(mac, config.mac);
  config.agent = getenv("HARP_AGENT");
  int rc = harp_port_open(&port, device, &config, error);
  if (rc == 0 && (rc = harp_port_start(port, error)) < 0) {
    harp_port_close(port);
    port = NULL;
  }
  if (rc < 0) {
    printf("error %d %s\n", -rc, error);
    return;
  }
  const struct harp_port_info *info = &port->info;
  struct in_addr own = {info->address}, gateway = {info->gateway};
  char own_text[INET_ADDRSTRLEN], gateway_text[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, &own, own_text, sizeof(own_text));
  inet_ntop(AF_INET, &gateway, gateway_text, sizeof(gateway_text));
  printf("ok {\"mac\": \"%02x:%02x:%02x:%02x:%02x:%02x\", \"mtu\": %u, \"speed\": %u, "
         "\"offloads\": %u, \"max_frame\": %u, \"address\": \"%s\", \"prefix\": %u, "
         "\"gateway\": \"%s\", \"shares\": %d, \"pci\": \"%s\", \"summary\": \"%s\"}\n",
         info->mac[0], info->mac[1], info->mac[2], info->mac[3], info->mac[4], info->mac[5],
         info->mtu, info->speed_mbps, info->offloads, info->max_frame, own_text, info->prefix,
         gateway_text, info->shares_address, info->pci_path, info->summary);
}

/* Cuts the bytes after the headers into pieces of about the same length. */
static uint16_t cut(struct iovec *iov, uint32_t header, uint32_t length, unsigned pieces)
{
  if (pieces <= 1 || length == header) {
    iov[0] = (struct iovec){frame_bytes, length};
    return 1;
  }
  uint32_t step = (length - header + pieces - 2) / (pieces - 1);
  uint16_t n = 0;
  iov[n++] = (struct iovec){frame_bytes, header};
  for (uint32_t at = header; at < length; at += step) {
    iov[n++] = (struct iovec){frame_bytes + at, length - at < step ? length - at : step};
  }
  return n;
}

static void do_send(const char *line)
{
  unsigned queue, header, segment, start, offset, needed, pieces;
  int used;
  if (sscanf(line, "send %u %u %u %u %u %u %u %n", &queue, &header, &segment, &start, &offset,
             &needed, &pieces, &used) != 7 ||
      pieces > PIECES) {
    answer(-EINVAL);
    return;
  }
  static struct iovec iov[PIECES + 1];
  uint32_t length = read_hex(line + used);
  struct harp_tx_frame frame = {
      .iov = iov,
      .iov_count = cut(iov, header, length, pieces),
      .header_length = (uint16_t)header,
      .segment_size = (uint16_t)segment,
      .checksum_start = (uint16_t)start,
      .checksum_offset = (uint16_t)offset,
      .checksum_needed = (uint8_t)needed,
      .length = length,
  };
  answer(port->ops->transmit(port, queue, &frame));
}

/* "frame HEADER_LENGTH PAYLOAD_LENGTH SEGMENT GOOD PLACE HEX". PLACE: offset of the payload in
 * the hinted memory, -1 if it is elsewhere. */
static void print_frame(const struct harp_rx_frame *frame)
{
  long place = -1;
  if (frame->payload_length && frame->payload >= hint_bytes &&
      frame->payload < hint_bytes + HINT_ROOM) {
    place = frame->payload - hint_bytes;
  }
  printf("frame %u %u %u %u %ld ", frame->header_length, frame->payload_length, frame->segment_size,
         frame->checksum_good, place);
  print_hex(frame->header, frame->header_length);
  print_hex(frame->payload, frame->payload_length);
  putchar('\n');
}

static void do_receive(const char *line)
{
  unsigned queue, most, timeout, header, length, stride, gap, next, next_length, count = 0;
  if (sscanf(line, "receive %u %u %u %u %u %u %u %u %u", &queue, &most, &timeout, &header, &length,
             &stride, &gap, &next, &next_length) != 9 ||
      length > HINT_ROOM || next + next_length > HINT_ROOM) {
    answer(-EINVAL);
    return;
  }
  bool hinted = header > 0;
  struct harp_rx_hint hint = {(uint16_t)header,
                              length ? hint_bytes : NULL,
                              length,
                              stride,
                              gap,
                              next_length ? hint_bytes + next : NULL,
                              next_length};
  struct harp_rx_frame frames[BURST];
  uint64_t end = now_ms() + timeout;
  for (;;) {
    /* A frame for two places needs room for its pieces. */
    unsigned room = next_length || most - count > BURST ? BURST : most - count;
    int n = port->ops->receive(port, queue, hinted ? &hint : NULL, frames, (int)room);
    if (n < 0) {
      answer(n);
      return;
    }
    for (int i = 0; i < n; i++) {
      print_frame(&frames[i]);
    }
    count += (unsigned)n;
    if (count >= most || now_ms() >= end) {
      break;
    }
    struct timespec pause = {.tv_nsec = 200000};
    if (n == 0) {
      nanosleep(&pause, NULL);
    }
  }
  answer((int)count);
}

static void do_wait(const char *line)
{
  unsigned queue, timeout;
  if (sscanf(line, "wait %u %u", &queue, &timeout) != 2) {
    answer(-EINVAL);
    return;
  }
  struct pollfd wait = {.fd = port->ops->descriptor(port, queue), .events = POLLIN};
  answer(poll(&wait, 1, (int)timeout) < 0 ? -errno : !!(wait.revents & POLLIN));
}

static void do_count(const char *line)
{
  unsigned queue = 0;
  uint64_t counters[HARP_COUNTERS] = {0};
  sscanf(line, "count %u", &queue);
  port->ops->count(port, queue, counters);
  printf("ok {\"copied\": %llu, \"full\": %llu, \"errors\": %llu, \"lost\": %llu, "
         "\"referred\": %llu, \"handed\": %llu, \"resets\": %llu, \"xdp_sockets\": %llu, "
         "\"xdp_zero_copy\": %llu, \"xdp_dropped\": %llu, \"xdp_ring_full\": %llu, "
         "\"xdp_fill_empty\": %llu, \"xdp_invalid\": %llu}\n",
         (unsigned long long)counters[HARP_COUNTER_tx_copied_bytes],
         (unsigned long long)counters[HARP_COUNTER_port_tx_full],
         (unsigned long long)counters[HARP_COUNTER_port_tx_errors],
         (unsigned long long)counters[HARP_COUNTER_port_rx_lost],
         (unsigned long long)counters[HARP_COUNTER_tx_zero_copy_bytes],
         (unsigned long long)counters[HARP_COUNTER_port_rx_handed],
         (unsigned long long)counters[HARP_COUNTER_port_resets],
         (unsigned long long)counters[HARP_COUNTER_xdp_sockets],
         (unsigned long long)counters[HARP_COUNTER_xdp_zero_copy],
         (unsigned long long)counters[HARP_COUNTER_xdp_rx_dropped],
         (unsigned long long)counters[HARP_COUNTER_xdp_rx_ring_full],
         (unsigned long long)counters[HARP_COUNTER_xdp_fill_ring_empty],
         (unsigned long long)counters[HARP_COUNTER_xdp_invalid_descriptors]);
}

static void do_blast(const char *line)
{
  unsigned queue, milliseconds, header, segment, start, offset;
  int used;
  if (sscanf(line, "blast %u %u %u %u %u %u %n", &queue, &milliseconds, &header, &segment, &start,
             &offset, &used) != 6) {
    answer(-EINVAL);
    return;
  }
  struct iovec iov[PIECES + 1];
  uint32_t length = read_hex(line + used);
  struct harp_tx_frame frame = {
      .iov = iov,
      .iov_count = cut(iov, header, length, 3),
      .header_length = (uint16_t)header,
      .segment_size = (uint16_t)segment,
      .checksum_start = (uint16_t)start,
      .checksum_offset = (uint16_t)offset,
      .checksum_needed = start != 0,
      .length = length,
  };
  uint64_t sent = 0, full = 0, begin = now_ms(), cpu = cpu_ms();
  while (now_ms() - begin < milliseconds) {
    for (int i = 0; i < BURST; i++) {
      int rc = port->ops->transmit(port, queue, &frame);
      sent += rc == 0;
      full += rc == -EAGAIN;
    }
    port->ops->flush(port, queue);
  }
  printf("ok {\"frames\": %llu, \"full\": %llu, \"ms\": %llu, \"cpu_ms\": %llu}\n",
         (unsigned long long)sent, (unsigned long long)full, (unsigned long long)(now_ms() - begin),
         (unsigned long long)(cpu_ms() - cpu));
}

/* Copies a frame to the next place in a buffer, like an application. Returns the place after it. */
static uint32_t keep(const struct harp_rx_frame *frame, uint32_t place)
{
  uint32_t length = frame->header_length;
  if (place + length > HINT_ROOM) {
    place = 0;
  }
  memcpy(hint_bytes + place, frame->header, length);
  return place + length;
}

static void do_drain(const char *line)
{
  unsigned queue, milliseconds, header, stride, copy = 0;
  if (sscanf(line, "drain %u %u %u %u %u", &queue, &milliseconds, &header, &stride, &copy) < 4) {
    answer(-EINVAL);
    return;
  }
  struct harp_rx_hint hint = {(uint16_t)header, hint_bytes, HINT_ROOM, stride};
  struct harp_rx_frame frames[BURST];
  uint64_t count = 0, bytes = 0, begin = 0, last = 0, end = now_ms() + 10000, polls = 0;
  uint32_t place = 0;
  while (now_ms() < end) {
    int n = port->ops->receive(port, queue, header ? &hint : NULL, frames, BURST);
    polls++;
    for (int i = 0; i < n; i++) {
      bytes += frames[i].header_length + frames[i].payload_length;
      if (copy) {
        place = keep(&frames[i], place);
      }
    }
    if (n <= 0) {
      continue;
    }
    count += (uint64_t)n;
    last = now_ms();
    if (!begin) {
      begin = last;
      end = begin + milliseconds;
    }
  }
  printf("ok {\"frames\": %llu, \"bytes\": %llu, \"ms\": %llu, \"polls\": %llu}\n",
         (unsigned long long)count, (unsigned long long)bytes, (unsigned long long)(last - begin),
         (unsigned long long)polls);
}

static void do_port(const char *line)
{
  unsigned queue, number;
  uint16_t local = 0;
  if (sscanf(line, "reserve %u %u", &queue, &number) == 2) {
    int rc = port->ops->reserve(port, queue, (uint16_t)number, &local);
    answer(rc < 0 ? rc : local);
  } else if (sscanf(line, "release %u %u", &queue, &number) == 2) {
    port->ops->release(port, queue, (uint16_t)number);
    answer(0);
  } else {
    answer(-EINVAL);
  }
}

static void do_memory(const char *line)
{
  uintptr_t start = (uintptr_t)frame_bytes, end = start + sizeof(frame_bytes);
  unsigned queue, timeout;
  if (sscanf(line, "reclaim %u %u", &queue, &timeout) == 2) {
    answer(port->ops->reclaim(port, queue, timeout));
  } else if (!port->ops->dma_map) {
    answer(-ENOTSUP);
  } else if (strncmp(line, "dma_map", 7) == 0) {
    answer(port->ops->dma_map(port, start, end));
  } else if (strncmp(line, "dma_revoke", 10) == 0) {
    port->ops->dma_revoke(port, start, end);
    answer(0);
  } else {
    port->ops->dma_unmap_deferred(port);
    answer(0);
  }
}

static void do_fork(const char *line)
{
  unsigned milliseconds = 0;
  sscanf(line, "fork %u", &milliseconds);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    port->ops->forget(port);
    printf("ok %d\n", (int)getpid());
    fflush(stdout);
    fclose(stdout);
    usleep(milliseconds * 1000);
    _exit(0);
  }
  if (child < 0) {
    answer(-errno);
  }
}

static void do_small(const char *line)
{
  unsigned queue = 0, value = 0;
  if (sscanf(line, "arm %u %u", &queue, &value) == 2) {
    answer(port->ops->arm(port, queue, value != 0));
  } else if (sscanf(line, "flush %u", &queue) == 1) {
    port->ops->flush(port, queue);
    answer(0);
  } else if (sscanf(line, "use %u", &value) == 1 && value < 2) {
    current = value;
    answer(0);
  } else if (strncmp(line, "hold", 4) == 0) {
    answer(probe_hold ? probe_hold() : -ENOTSUP);
  } else if (strncmp(line, "close", 5) == 0) {
    harp_port_close(port);
    port = NULL;
    answer(0);
  } else {
    answer(-ENOSYS);
  }
}

static void obey(const char *line)
{
  static const struct {
    const char *word;
    void (*act)(const char *line);
  } commands[] = {
      {"open ", do_open},    {"send ", do_send},   {"receive ", do_receive}, {"wait ", do_wait},
      {"count ", do_count},  {"blast ", do_blast}, {"drain ", do_drain},     {"reserve ", do_port},
      {"release ", do_port}, {"dma_", do_memory},  {"reclaim ", do_memory},  {"fork ", do_fork},
  };
  for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
    if (strncmp(line, commands[i].word, strlen(commands[i].word)) == 0) {
      commands[i].act(line);
      return;
    }
  }
  do_small(line);
}

int main(void)
{
  char *line = NULL;
  size_t room = 0;
  while (getline(&line, &room, stdin) > 0) {
    obey(line);
    fflush(stdout);
  }
  for (current = 0; current < 2; current++) {
    harp_port_close(port);
  }
  free(line);
  return 0;
}
