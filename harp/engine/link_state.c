/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/engine/link_state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "harp/engine/config.h"
#include "harp/engine/log.h"

/* The instances of a NIC notice the same outage, so one of them counts and logs it. */
static bool speaks_for_nic(const struct harp_instance *instance) { return instance->queue == 0; }

/* why: what happened to the device, and where to look. */
static void begin_outage(struct harp_instance *instance, const char *why, const char *look)
{
  char since[16];
  time_t now = time(NULL);
  struct tm utc;
  instance->outage = instance->now;
  instance->counters[HARP_COUNTER_port_down] = 1;
  if (speaks_for_nic(instance)) {
    strftime(since, sizeof since, "%H:%M:%S", gmtime_r(&now, &utc));
    harp_log_post(HARP_LOG_WARN,
                  "HARP: the device %.64s %s at %s UTC. Links use another NIC, or wait until it "
                  "is back, at most timeout_ms (%u); %s.",
                  instance->config->device, why, since, instance->config->timeout_ms, look);
  }
}

static void end_outage(struct harp_instance *instance)
{
  uint64_t ms = (instance->now - instance->outage) / 1000000;
  instance->outage = 0;
  instance->counters[HARP_COUNTER_port_down] = 0;
  instance->link_changed = instance->now;
  harp_trace(&instance->trace, instance->now, HARP_TRACE_NO_FLOW, HARP_TRACE_port_back, 0,
             (uint32_t)ms);
  if (speaks_for_nic(instance)) {
    harp_log_post(HARP_LOG_INFO, "HARP: the device %.64s is back after %.1f s. Links use it again.",
                  instance->config->device, (double)ms / 1000);
  }
}

void harp_link_state_port(struct harp_instance *instance, int error)
{
  bool down = error != 0;
  if (down == harp_instance_link_down(instance)) {
    return;
  }
  atomic_store_explicit(&instance->link_down, down, memory_order_relaxed);
  instance->link_changed = instance->now;
  instance->counters[HARP_COUNTER_port_link_changes]++;
  if (!down) {
    return; /* the outage ends with the next look at the carrier, which may come later */
  }
  harp_trace(&instance->trace, instance->now, HARP_TRACE_NO_FLOW, HARP_TRACE_port_error,
             (uint32_t)-error, 0);
  if (!instance->outage && error == -EADDRNOTAVAIL) {
    begin_outage(instance, "no longer has its MAC or IP address",
                 "set the old address again, or restart the job");
  } else if (!instance->outage) {
    char why[96];
    snprintf(why, sizeof why, "failed: %s", strerror(-error));
    begin_outage(instance, why, "see `ip link`");
  }
}

void harp_link_state_watch(struct harp_instance *instance)
{
  if (harp_instance_link_down(instance)) {
    return;
  }
  bool carrier = harp_port_has_carrier(instance->port);
  if (!carrier) {
    instance->link_changed = instance->now;
  }
  if (carrier == !instance->outage) {
    return;
  }
  if (carrier) {
    end_outage(instance);
    return;
  }
  harp_trace(&instance->trace, instance->now, HARP_TRACE_NO_FLOW, HARP_TRACE_carrier_lost, 0, 0);
  if (speaks_for_nic(instance)) {
    instance->counters[HARP_COUNTER_port_carrier_losses]++;
  }
  begin_outage(instance, "has lost its carrier", "check the cable and the switch");
}

bool harp_instance_link_up(struct harp_instance *instance)
{
  harp_link_state_watch(instance);
  return !harp_instance_link_down(instance) && !instance->outage;
}
