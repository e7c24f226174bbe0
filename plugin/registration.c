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

/* A range's pages on each NIC that may send from it. */
struct net_region {
  struct net_region *next; /* in the link's list; under transport->lock */
  size_t size;             /* bytes of the application's memory */
  unsigned count;
  struct {
    struct harp_engine *engine;
    struct harp_region *pages;
  } on[];
};

size_t region_size(const struct net_region *region) { return region->size; }

/* Releases the pages on all NICs and frees the region. 0, or the first error. */
static int release_region(struct net_region *region)
{
  int result = 0;
  while (region->count > 0) {
    region->count--;
    int one = harp_region_deregister(region->on[region->count].engine,
                                     region->on[region->count].pages);
    result = result ? result : one;
  }
  free(region);
  return result;
}

static int add_nic(struct net_region *region, const struct transport_nic *nic, void *data,
                   size_t size)
{
  int result = harp_region_register(nic->engine, data, size, &region->on[region->count].pages);
  if (result == 0) {
    region->on[region->count++].engine = nic->engine;
  }
  return result;
}

/* The other NICs are optional: they send copies of a range that is not registered on them. So does
 * a NIC to which a flow moves later. */
static int add_nics(struct net_region *region, const struct net_link *link, void *data, size_t size)
{
  int result = add_nic(region, link->nic, data, size);
  const struct transport_nic *nic = link->striped ? nic_next(link->transport, NULL) : NULL;
  for (; nic && result == 0; nic = nic_next(link->transport, nic)) {
    if (nic != link->nic) {
      add_nic(region, nic, data, size);
    }
  }
  return result;
}

int net_register(struct net_link *link, void *data, size_t size, int type, struct net_region **out)
{
  *out = NULL;
  if (transport_forked() || type != NCCL_PTR_HOST) {
    return transport_forked() ? -EPERM : -EINVAL;
  }
  unsigned most = link->striped ? link->transport->nics.claims.count : 1;
  struct net_region *region = calloc(1, sizeof *region + most * sizeof region->on[0]);
  if (!region) {
    return -ENOMEM;
  }
  region->size = size;
  int result = add_nics(region, link, data, size);
  if (result != 0) {
    release_region(region);
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

int net_deregister(struct net_link *link, struct net_region *region)
{
  if (transport_forked()) {
    return -EPERM;
  }
  if (!unlist(link, region)) {
    return -EINVAL;
  }
  link_revoke_region(link, region);
  return release_region(region);
}

void link_release_regions(struct net_link *link)
{
  while (link->regions) {
    struct net_region *region = link->regions;
    link->regions = region->next;
    release_region(region);
  }
}
