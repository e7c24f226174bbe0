/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/kernel/kernel_ports.h"
#include "dpdk_glue/descriptor.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FOLDER "/proc/sys/net/ipv4/"

/* Room for the longest possible list: every other port, 32,768 numbers with their commas. */
enum { TEXT_SIZE = 256 * 1024 };

/* Reads with one call, because the kernel cuts the list to the buffer's size and returns no
 * second part. */
static void read_text(const char *path, char *text)
{
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = fd < 0 ? 0 : read(fd, text, TEXT_SIZE - 1);
  text[got > 0 ? got : 0] = '\0';
  harp_descriptor_close(fd);
}

static void mark(struct harp_kernel_ports *ports, unsigned first, unsigned last)
{
  for (unsigned port = first; port <= last && port <= 65535; port++) {
    ports->reserved[port / 64] |= UINT64_C(1) << port % 64;
  }
}

/* text: a list such as "8080,9000-9010". */
static void mark_all(struct harp_kernel_ports *ports, const char *text)
{
  for (; *text >= '0' && *text <= '9'; text += *text == ',') {
    char *end;
    unsigned long first = strtoul(text, &end, 10), last = first;
    if (*end == '-') {
      last = strtoul(end + 1, &end, 10);
    }
    mark(ports, (unsigned)first, (unsigned)last);
    text = end;
  }
}

void harp_kernel_ports_read(struct harp_kernel_ports *ports)
{
  char *text = malloc(TEXT_SIZE);
  memset(ports, 0, sizeof(*ports));
  ports->first = 1;
  ports->last = 65535;
  if (!text) {
    return;
  }
  read_text(FOLDER "ip_local_port_range", text);
  unsigned first, last;
  if (sscanf(text, "%u %u", &first, &last) == 2 && first <= last && last <= 65535) {
    ports->first = (uint16_t)first;
    ports->last = (uint16_t)last;
  }
  read_text(FOLDER "ip_local_reserved_ports", text);
  mark_all(ports, text);
  free(text);
}

bool harp_kernel_ports_offered(const struct harp_kernel_ports *ports, uint16_t port)
{
  return port >= ports->first && port <= ports->last &&
         !(ports->reserved[port / 64] >> port % 64 & 1);
}
