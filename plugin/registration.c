/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that NCCL registers on a link. Each registration is an object of its own, even if two
 * cover the same pages and share one region of the engine: deregistering one must not end transfers
 * of the other. Closing a link releases its remaining registrations.
 */
#include <errno.h>
#include <stdlib.h>

#include "plugin/link/link.h"
#include "plugin/nccl/nccl_types.h"

struct net_region {
  struct net_region *next; /* in the link's list; under transport->lock */
  struct harp_region *pages;
};

int net_register(struct net_link *link, void *data, size_t size, int type, struct net_region **out)
{
  *out = NULL;
  if (transport_forked() || type != NCCL_PTR_HOST) {
    return transport_forked() ? -EPERM : -EINVAL;
  }
  struct net_region *region = malloc(sizeof *region);
  if (!region) {
    return -ENOMEM;
  }
  int result = harp_region_register(link->transport->engine, data, size, &region->pages);
  if (result != 0) {
    free(region);
    return result;
  }
  pthread_mutex_lock(&link->transport->lock);
  region->next = link->regions;
  link->regions = region;
  pthread_mutex_unlock(&link->transport->lock);
  *out = region;
  return 0;
}

static bool unlist(struct net_link *link, const struct net_region *region)
{
  pthread_mutex_lock(&link->transport->lock);
  struct net_region **at = &link->regions;
  while (*at && *at != region) {
    at = &(*at)->next;
  }
  bool known = *at != NULL;
  if (known) {
    *at = region->next;
  }
  pthread_mutex_unlock(&link->transport->lock);
  return known;
}

static int give_back(struct net_link *link, struct net_region *region)
{
  int result = harp_region_deregister(link->transport->engine, region->pages);
  free(region);
  return result;
}

int net_deregister(struct net_link *link, struct net_region *region)
{
  if (transport_forked()) {
    return -EPERM;
  }
  if (!unlist(link, region)) {
    return -EINVAL;
  }
  link_lose_memory(link, region);
  return give_back(link, region);
}

void link_give_memory_back(struct net_link *link)
{
  while (link->regions) {
    struct net_region *region = link->regions;
    link->regions = region->next;
    give_back(link, region);
  }
}
