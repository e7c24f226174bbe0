/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the XDP program on frames, in the kernel but without an interface (BPF_PROG_TEST_RUN).
 *
 * Usage: xdp_check MAC ADDRESS FIRST-LAST [INTERFACE]. The program holds the local ports FIRST to
 * LAST. Each line of standard input is a frame in hex. Prints "ours" or "kernel" for each, or
 * "error NUMBER". INTERFACE: attaches the program there, too, and prints "attached".
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/bpf.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dpdk_glue/port.h"
#include "dpdk_glue/xdp/xdp_steering.h"

enum { FRAME_ROOM = 3000 };

static uint8_t frame[FRAME_ROOM];

static uint32_t read_hex(const char *text)
{
  uint32_t length = 0;
  unsigned byte;
  for (; length < FRAME_ROOM && sscanf(text, "%2x", &byte) == 1; text += 2) {
    frame[length++] = (uint8_t)byte;
  }
  return length;
}

static void judge(int program, uint32_t length)
{
  union bpf_attr attributes = {
      .test.prog_fd = (uint32_t)program,
      .test.data_in = (uint64_t)(uintptr_t)frame,
      .test.data_size_in = length,
      .test.repeat = 1,
  };
  if (syscall(SYS_bpf, BPF_PROG_TEST_RUN, &attributes, sizeof(attributes)) < 0) {
    printf("error %d\n", errno);
  } else if (attributes.test.retval == XDP_REDIRECT || attributes.test.retval == XDP_PASS) {
    puts(attributes.test.retval == XDP_REDIRECT ? "ours" : "kernel");
  } else {
    printf("verdict %u\n", attributes.test.retval);
  }
}

int main(int argc, char **argv)
{
  struct xdp_steering steering;
  char error[HARP_PORT_ERROR_SIZE];
  unsigned mac[6], first, last;
  uint8_t own[6];
  struct in_addr address;
  if (argc < 4 ||
      sscanf(argv[1], "%x:%x:%x:%x:%x:%x", &mac[0], &mac[1], &mac[2], &mac[3], &mac[4], &mac[5]) !=
          6 ||
      inet_pton(AF_INET, argv[2], &address) != 1 || sscanf(argv[3], "%u-%u", &first, &last) != 2) {
    return 2;
  }
  for (int i = 0; i < 6; i++) {
    own[i] = (uint8_t)mac[i];
  }
  harp_xdp_steering_init(&steering);
  int fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
  if (harp_xdp_steering_open(&steering, "check", address.s_addr, own, 1, false, error) < 0) {
    fprintf(stderr, "%s\n", error);
    return 1;
  }
  if (fd < 0 || harp_xdp_steering_add(&steering, 0, fd) < 0) {
    perror("AF_XDP");
    return 1;
  }
  harp_xdp_steering_hold(&steering, (uint16_t)first, (uint16_t)last);
  if (argc > 4) {
    if (harp_xdp_steering_attach(&steering, argv[4], (int)if_nametoindex(argv[4]), error) < 0) {
      fprintf(stderr, "%s\n", error);
      return 1;
    }
    puts("attached");
    fflush(stdout);
  }
  char *line = NULL;
  size_t room = 0;
  while (getline(&line, &room, stdin) > 0) {
    judge(steering.program, read_hex(line));
  }
  free(line);
  harp_xdp_steering_close(&steering);
  close(fd);
  return 0;
}
