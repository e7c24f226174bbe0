/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An instance that takes no frames from its port for some polls. The clock is virtual. The program
 * prints how many of ten polls ask the port for frames.
 *
 * Usage: postpone_check POLLS NS: ten polls after harp_instance_postpone_receive(POLLS), one each
 * NS nanoseconds.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "harp/engine/config.h"
#include "harp/engine/instance.h"

enum { NS_PER_S = 1000000000 };

static uint64_t now = 1000ull * NS_PER_S;
static unsigned asked;

int __wrap_clock_gettime(clockid_t clock, struct timespec *time);

int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
  *time = (struct timespec){(time_t)(now / NS_PER_S), (long)(now % NS_PER_S)};
  return 0;
}

static int receive(struct harp_port *port, unsigned queue, const struct harp_rx_hint *hint,
                   struct harp_rx_frame *frames, int max)
{
  asked++;
  return 0;
}

static int transmit(struct harp_port *port, unsigned queue, const struct harp_tx_frame *frame)
{
  return 0;
}

static void flush(struct harp_port *port, unsigned queue) {}

static void count(struct harp_port *port, unsigned queue, uint64_t *counters) {}

int main(int argc, char **argv)
{
  static const struct harp_port_ops ops = {
      .scheme = "check", .receive = receive, .transmit = transmit, .flush = flush, .count = count};
  static const struct harp_config settings;
  struct harp_port port = {.ops = &ops, .info = {.mtu = 1500, .max_frame = 65536, .prefix = 24}};
  port.info.address = htonl(0x0a090001);
  struct harp_instance_config config = {.port = &port, .config = &settings, .cpu = -1};
  struct harp_instance *instance;
  if (argc != 3) {
    return 2;
  }
  harp_stack_config_default(&config.stack);
  config.stack.address = port.info.address;
  if (harp_instance_create(&instance, &config) != 0) {
    return 1;
  }
  harp_instance_poll(instance, NULL);
  asked = 0;
  harp_instance_postpone_receive(instance, (unsigned)atoi(argv[1]));
  for (int i = 0; i < 10; i++) {
    now += (uint64_t)atoll(argv[2]);
    harp_instance_poll(instance, NULL);
  }
  printf("%u\n", asked);
  harp_instance_destroy(instance);
  return 0;
}
