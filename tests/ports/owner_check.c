/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that owns a NIC exclusively, as other processes see it, without a driver. It is driven
 * line by line.
 *
 * Usage: owner_check ID DRIVER FILE. It takes the PCI function, prints "has" or the error, and
 * opens FILE, as DPDK opens a device. Then it answers these commands:
 *
 *   child   the process id of a forked child that has released the NIC and only sleeps
 *   give    "given": the NIC is free again
 *
 * It exits at the end of standard input.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "dpdk_glue/dpdk/ethdev_owner.h"
#include "dpdk_glue/port.h"

static void answer_child(struct ethdev_owner *owner)
{
  int told[2];
  char done;
  pid_t child = pipe(told) == 0 ? fork() : -1;
  if (child == 0) {
    harp_ethdev_owner_forget(owner);
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
      close(fd); /* the reader of these pipes waits only for the parent's end */
    }
    close(told[1]);
    for (;;) {
      pause();
    }
  }
  close(told[1]); /* the child closes its copy after the release */
  while (read(told[0], &done, 1) > 0) {
    continue;
  }
  close(told[0]);
  printf("%d\n", (int)child);
}

int main(int argc, char **argv)
{
  char line[32], error[HARP_PORT_ERROR_SIZE];
  struct ethdev_spec spec;
  struct ethdev_owner owner;
  if (argc != 4 || harp_ethdev_spec_parse(&spec, argv[1], error) < 0) {
    return 2;
  }
  snprintf(spec.uio, sizeof(spec.uio), "%s", argv[2]);
  setvbuf(stdout, NULL, _IOLBF, 0);
  harp_ethdev_owner_init(&owner);
  if (harp_ethdev_owner_take(&owner, &spec, error) < 0) {
    printf("%s\n", error);
    return 1;
  }
  int device = open(argv[3], O_RDWR);
  harp_ethdev_owner_attached(&owner);
  printf("has %u\n", owner.file_count);
  while (fgets(line, sizeof(line), stdin)) {
    if (strcmp(line, "child\n") == 0) {
      answer_child(&owner);
    } else if (strcmp(line, "give\n") == 0) {
      harp_ethdev_owner_detaching(&owner);
      close(device);
      harp_ethdev_owner_give(&owner);
      printf("given\n");
    }
  }
  return 0;
}
