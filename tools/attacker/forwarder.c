/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/attacker/forwarder.h"

#include <poll.h>
#include <stdio.h>

enum { BURST = 32 };

static int open_end(struct between *between, enum between_end end, const char *path, char *error)
{
  char device[200];
  struct harp_port_config config = {.queues = 1, .address = 0x0900000a, .prefix = 8};
  snprintf(device, sizeof device, "wire:%s", path);
  return harp_port_open(&between->ports[end], device, &config, error);
}

int between_open(struct between *between, const char *victim, const char *other, char *error)
{
  int rc = open_end(between, BETWEEN_VICTIM, victim, error);
  return rc < 0 ? rc : open_end(between, BETWEEN_OTHER, other, error);
}

void between_close(struct between *between)
{
  for (int end = 0; end < BETWEEN_ENDS; end++)
    harp_port_close(between->ports[end]);
}

int between_put(struct between *between, enum between_end end, const uint8_t *bytes,
                uint32_t length, uint16_t segment_size, bool vouched)
{
  struct iovec iov = {(void *)(uintptr_t)bytes, length};
  struct harp_tx_frame frame = {
      .iov = &iov,
      .iov_count = 1,
      .length = length,
      .header_length = (uint16_t)(length < UINT16_MAX ? length : UINT16_MAX),
      .segment_size = segment_size,
      .checksum_needed = vouched,
  };
  return between->ports[end]->ops->transmit(between->ports[end], 0, &frame);
}

void between_flush(struct between *between, enum between_end end)
{
  between->ports[end]->ops->flush(between->ports[end], 0);
}

static int pass_on(struct between *between, enum between_end from)
{
  struct harp_rx_frame frames[BURST];
  int count = between->ports[from]->ops->receive(between->ports[from], 0, NULL, frames, BURST);
  for (int i = 0; i < count; i++) {
    const struct harp_rx_frame *frame = &frames[i];
    if (between->seen(between->user, from, frame))
      (void)!between_put(between, !from, frame->header, frame->header_length,
                         frame->segment_size, frame->checksum_good);
  }
  if (count > 0)
    between_flush(between, !from);
  return count;
}

int between_pass(struct between *between)
{
  return pass_on(between, BETWEEN_VICTIM) + pass_on(between, BETWEEN_OTHER);
}

bool between_wait(struct between *between, int fd, int ms)
{
  struct pollfd fds[BETWEEN_ENDS + 1] = {{.fd = fd, .events = POLLIN}};
  bool busy = false;
  for (int end = 0; end < BETWEEN_ENDS; end++) {
    struct harp_port *port = between->ports[end];
    fds[1 + end] = (struct pollfd){.fd = port->ops->descriptor(port, 0), .events = POLLIN};
    busy |= port->ops->arm(port, 0, true) > 0;
  }
  poll(fds, BETWEEN_ENDS + 1, busy ? 0 : ms);
  for (int end = 0; end < BETWEEN_ENDS; end++)
    between->ports[end]->ops->arm(between->ports[end], 0, false);
  return fds[0].revents != 0;
}
