/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The probe's command hold: from now on DPDK's devices keep all frames that they are given to send,
 * until they are closed.
 */
#include <errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <stdbool.h>

enum { HELD = 4096 };

int probe_hold(void);

static struct rte_mbuf *held[HELD];
static unsigned held_count;
static bool holds;

static uint16_t hold(uint16_t id, uint16_t queue, struct rte_mbuf *mbufs[], uint16_t count,
                     void *unused)
{
  for (uint16_t i = 0; holds && i < count && held_count < HELD; i++) {
    for (struct rte_mbuf *part = mbufs[i]; part; part = part->next) {
      rte_mbuf_refcnt_update(part, 1);
    }
    held[held_count++] = mbufs[i];
  }
  return count;
}

static int let_go(uint16_t id, enum rte_eth_event_type event, void *unused, void *none)
{
  rte_pktmbuf_free_bulk(held, held_count);
  held_count = 0;
  holds = false; /* the next device works normally; callbacks outlive a device */
  return 0;
}

int probe_hold(void)
{
  uint16_t id;
  holds = true;
  RTE_ETH_FOREACH_DEV(id)
  {
    if (!rte_eth_add_tx_callback(id, 0, hold, NULL)) {
      return -ENOTSUP;
    }
  }
  return rte_eth_dev_callback_register(RTE_ETH_ALL, RTE_ETH_EVENT_DESTROY, let_go, NULL);
}
