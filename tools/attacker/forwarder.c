/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/attacker/forwarder.h"

#include <poll.h>
#include <stdio.h>

enum { BURST = 32 };

static int open_end(struct forwarder *forwarder, enum forwarder_end end, const char *path,
                    char *error)
{
  char device[200];
  struct harp_port_config config = {.queues = 1, .address = 0x0900000a, .prefix = 8};
  snprintf(device, sizeof device, "wire:%s", path);
  int rc = harp_port_open(&forwarder->ports[end], device, &config, error);
  return rc < 0 ? rc : harp_port_start(forwarder->ports[end], error);
}

int forwarder_open(struct forwarder *forwarder, const char *victim, const char *other, char *error)
{
  int rc = open_end(forwarder, FORWARDER_VICTIM, victim, error);
  return rc < 0 ? rc : open_end(forwarder, FORWARDER_OTHER, other, error);
}

void forwarder_close(struct forwarder *forwarder)
{
  for (int end = 0; end < FORWARDER_ENDS; end++) {
    harp_port_close(forwarder->ports[end]);
  }
}

int forwarder_put(struct forwarder *forwarder, enum forwarder_end end, const uint8_t *bytes,
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
  return forwarder->ports[end]->ops->transmit(forwarder->ports[end], 0, &frame);
}

void forwarder_flush(struct forwarder *forwarder, enum forwarder_end end)
{
  forwarder->ports[end]->ops->flush(forwarder->ports[end], 0);
}

static int pass_on(struct forwarder *forwarder, enum forwarder_end from)
{
  struct harp_rx_frame frames[BURST];
  int count = forwarder->ports[from]->ops->receive(forwarder->ports[from], 0, NULL, frames, BURST);
  for (int i = 0; i < count; i++) {
    const struct harp_rx_frame *frame = &frames[i];
    if (forwarder->seen(forwarder->user, from, frame)) {
      (void)!forwarder_put(forwarder, !from, frame->header, frame->header_length,
                           frame->segment_size, frame->checksum_good);
    }
  }
  if (count > 0) {
    forwarder_flush(forwarder, !from);
  }
  return count;
}

int forwarder_pass(struct forwarder *forwarder)
{
  return pass_on(forwarder, FORWARDER_VICTIM) + pass_on(forwarder, FORWARDER_OTHER);
}

bool forwarder_wait(struct forwarder *forwarder, int fd, int ms)
{
  struct pollfd fds[FORWARDER_ENDS + 1] = {{.fd = fd, .events = POLLIN}};
  bool busy = false;
  for (int end = 0; end < FORWARDER_ENDS; end++) {
    struct harp_port *port = forwarder->ports[end];
    fds[1 + end] = (struct pollfd){.fd = port->ops->descriptor(port, 0), .events = POLLIN};
    busy |= port->ops->arm(port, 0, true) > 0;
  }
  poll(fds, FORWARDER_ENDS + 1, busy ? 0 : ms);
  for (int end = 0; end < FORWARDER_ENDS; end++) {
    forwarder->ports[end]->ops->arm(forwarder->ports[end], 0, false);
  }
  return fds[0].revents != 0;
}
