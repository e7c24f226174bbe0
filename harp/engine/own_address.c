/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/engine/own_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>

#include "harp/engine/clock.h"
#include "harp/engine/engine.h"
#include "harp/stack/flow.h"

/*
 * RFC 5227, 1.1 lets a host wait 5 to 8 s for an address: up to 1 s before the first probe, 1 to 2
 * s between probes, and 2 s after the last. These times are for home networks with slow hosts and
 * bridges. Here a job's init waits, and hosts of a datacenter answer ARP within a millisecond. So
 * HARP sends as many probes, but waits 100 ms after each. There is no random delay: two hosts that
 * probe at the same moment see each other's probes, and both decline.
 */
enum {
  PROBES = 3, /* PROBE_NUM */
  PROBE_WAIT_US = 100000,
  ANNOUNCE_MS = 100, /* shorter than other calls, since the announcement is optional */
};

bool harp_own_address_doubtful(const struct harp_port_info *info)
{
  return !info->shares_address && !info->point_to_point;
}

static void probe(struct harp_instance *instance, void *argument)
{
  harp_stack_probe(instance->stack);
}

static void announce(struct harp_instance *instance, void *argument)
{
  harp_stack_announce(instance->stack);
}

struct verdict {
  int result;     /* of harp_stack_use_address */
  uint8_t mac[6]; /* hardware address of the other host if that failed */
};

static void judge(struct harp_instance *instance, void *argument)
{
  struct verdict *verdict = argument;
  verdict->result = harp_stack_use_address(instance->stack);
  if (verdict->result == 0 && instance->queue == 0) {
    harp_stack_announce(instance->stack); /* before it answers a request */
  }
  harp_stack_conflict(instance->stack, verdict->mac);
  instance->conflict_told = verdict->result != 0;
}

static void say(const struct harp_engine *engine, const uint8_t *mac, char *error)
{
  char address[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, &engine->port->info.address, address, sizeof address);
  snprintf(error, HARP_ENGINE_ERROR_SIZE,
           "%.100s: another host has the address %s: %02x:%02x:%02x:%02x:%02x:%02x answers ARP for "
           "it, or probes for it, too; take it from that host, or set an address in %.200s that no "
           "host has",
           engine->config.device, address, mac[0], mac[1], mac[2], mac[3], mac[4], mac[5],
           engine->config.path);
}

/* Two calls run in two polls, each before its poll reads frames. So the second one knows of all
 * frames that waited before the first one. A waiting frame may show a conflict. Instance 0 comes
 * last, because it announces the address. */
static int judge_all(struct harp_engine *engine, char *error)
{
  for (unsigned i = engine->instance_count; i-- > 0;) {
    struct verdict verdict = {0};
    int result = harp_instance_barrier(engine->instances[i], HARP_INSTANCE_CALL_MS);
    if (result == 0) {
      result = harp_instance_call(engine->instances[i], judge, &verdict, HARP_INSTANCE_CALL_MS);
    }
    if (result == 0 && verdict.result != 0) {
      say(engine, verdict.mac, error);
      result = verdict.result;
    }
    if (result != 0) {
      return result;
    }
  }
  return 0;
}

int harp_own_address_take(struct harp_engine *engine, char *error)
{
  struct harp_instance *first = engine->instances[0];
  int result = 0;
  if (harp_own_address_doubtful(&engine->port->info)) {
    for (int i = 0; i < PROBES && result == 0; i++) {
      result = harp_instance_call(first, probe, NULL, HARP_INSTANCE_CALL_MS);
      harp_sleep_us(PROBE_WAIT_US);
    }
    result = result == 0 ? judge_all(engine, error) : result;
  } else {
    harp_instance_call(first, announce, NULL, ANNOUNCE_MS);
  }
  if (result == -ETIMEDOUT) {
    snprintf(error, HARP_ENGINE_ERROR_SIZE,
             "a worker thread did not run within %d ms: this host is too busy",
             HARP_INSTANCE_CALL_MS);
  }
  return result;
}
