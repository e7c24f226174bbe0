/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/engine/claim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "harp/engine/lock_holder.h"
#include "harp/engine/nic_sysfs.h"
#include "harp/engine/rank_topology.h"

enum {
  /* distances */
  OWN_GPU = 0,
  ANY_GPU = 1, /* plus the NIC's distance to the process's GPU */
  FOREIGN_GPU = ANY_GPU + HARP_NEAR_UNKNOWN + 1,
  NOWHERE,
};

/* The files of the folder, as this process sees them. */
struct candidates {
  struct harp_conf_folder folder;
  struct harp_devices devices;
  struct harp_rank_topology topology;
  unsigned distance[HARP_CONF_FILES_MAX]; /* from this process; a smaller value is nearer */
  int lock_error; /* the first errno of a lock that failed, though no process holds it; 0: none */
};

static const struct harp_config *config_of(const struct candidates *files, int i)
{
  return &files->folder.files[i].config;
}

static bool is_shareable(const struct candidates *files, int i)
{
  return harp_config_shareable(config_of(files, i));
}

static int count_exclusive(const struct candidates *files)
{
  int count = 0;

  for (int i = 0; i < files->folder.count; i++) {
    count += !is_shareable(files, i);
  }
  return count;
}

/* Checks that there is a file for every local rank. A shareable file serves any number of ranks. */
static int check_number(const struct candidates *files, char *error)
{
  int ranks = files->topology.local_size, count = files->folder.count;

  if (count_exclusive(files) < count || ranks <= count) {
    return 0;
  }
  return harp_config_fail(
      error, -EUSERS,
      "%d files for %d local ranks: %.200s has too few ztcp*.conf, so "
      "every rank on this host declines; add %d, or share one with address = kernel",
      count, ranks, files->folder.path, ranks - count);
}

/* The distance of a NIC. A NIC that is assigned to another GPU is the last choice. All
 * NICs have the same distance if this process's GPU is unknown: the local rank then decides. */
static unsigned distance(const struct harp_config *config,
                         const struct harp_rank_topology *topology, const char *root)
{
  if (topology->gpu[0] && config->gpu[0]) {
    return strcmp(config->gpu, topology->gpu) == 0 ? OWN_GPU : FOREIGN_GPU;
  }
  return ANY_GPU + harp_nic_distance(config, topology->gpu, root);
}

static bool try_lock(struct candidates *files, int i)
{
  int kind = is_shareable(files, i) ? LOCK_SH : LOCK_EX, fd = files->folder.files[i].fd;
  int rc;

  if (fd < 0) {
    return false;
  }
  do {
    rc = flock(fd, kind | LOCK_NB);
  } while (rc < 0 && errno == EINTR);
  if (rc < 0 && errno != EWOULDBLOCK && !files->lock_error) {
    files->lock_error = errno;
  }
  return rc == 0;
}

static unsigned next_distance(const struct candidates *files, unsigned least)
{
  unsigned next = NOWHERE;

  for (int i = 0; i < files->folder.count; i++) {
    if (files->distance[i] >= least && files->distance[i] < next) {
      next = files->distance[i];
    }
  }
  return next;
}

static bool has_device(const struct harp_claims *claims, unsigned device)
{
  for (unsigned i = 0; i < claims->count; i++) {
    if (claims->of[i].device == device) {
      return true;
    }
  }
  return false;
}

/* Whether a file may serve. Any file may serve as the home NIC's (claims NULL). The file of another
 * NIC must be of the wanted kind, and its NIC must not be claimed yet. */
static bool may_serve(const struct candidates *files, int i, const struct harp_claims *claims,
                      bool shareable)
{
  return !claims ||
         (is_shareable(files, i) == shareable && !has_device(claims, files->devices.device_of[i]));
}

/* Locks a file at this distance. The home NIC is the one that matches the local rank, or the next
 * free one. So ranks with GPUs behind one PCI switch get different NICs of that switch. The search
 * for other NICs begins behind the files that match the local ranks, since a rank may start later.
 * Returns the index of the locked file, or -1. */
static int lock_one(struct candidates *files, unsigned away, const struct harp_claims *claims,
                    bool shareable)
{
  int same[HARP_CONF_FILES_MAX], count = 0;
  int rank = files->topology.local_rank > 0 ? files->topology.local_rank : 0;
  int first = claims ? files->topology.local_size + rank : 0;

  for (int step = 0; step < files->folder.count; step++) {
    int i = (first + step) % files->folder.count;

    if (files->distance[i] == away && may_serve(files, i, claims, shareable)) {
      same[count++] = i;
    }
  }
  for (int step = 0; step < count; step++) {
    int i = same[((claims ? 0 : rank % count) + step) % count];

    if (try_lock(files, i)) {
      return i;
    }
  }
  return -1;
}

/* Locks the nearest free file that may serve. Returns its index, or -1. */
static int lock_nearest(struct candidates *files, const struct harp_claims *claims, bool shareable)
{
  unsigned away;
  int chosen = -1;

  for (away = next_distance(files, 0); chosen < 0 && away < NOWHERE;
       away = next_distance(files, away + 1)) {
    chosen = lock_one(files, away, claims, shareable);
  }
  return chosen;
}

/* A network file system may have no locks. */
static int cannot_lock(const struct candidates *files, char *error)
{
  return harp_config_fail(error, -files->lock_error,
                          "cannot lock a ztcp*.conf in %.300s: %s; put HARP_CONF_DIR on a local "
                          "file system",
                          files->folder.path, strerror(files->lock_error));
}

static int all_claimed(const struct candidates *files, char *error)
{
  char holders[256] = "";
  size_t used = 0;

  for (int i = 0; i < files->folder.count && used < sizeof(holders); i++) {
    const char *path = config_of(files, i)->path;
    char who[96];

    harp_lock_holder(files->folder.files[i].fd, who, sizeof(who));
    used += (size_t)snprintf(holders + used, sizeof(holders) - used, "%s%s by %s", i ? ", " : "",
                             strrchr(path, '/') + 1, who);
  }
  return harp_config_fail(error, -EBUSY,
                          "all ztcp*.conf in %.120s are claimed: %s; end one of these, or add a "
                          "file",
                          files->folder.path, holders);
}

/* Moves a locked file into a claim. */
static void move(struct candidates *files, int i, struct harp_claim *claim)
{
  claim->fd = files->folder.files[i].fd;
  claim->config = *config_of(files, i);
  claim->shared = is_shareable(files, i);
  claim->device = files->devices.device_of[i];
  files->folder.files[i].fd = -1;
}

static int take_home(struct harp_claim *claim, struct candidates *files, char *error)
{
  int rc = check_number(files, error);
  int i = rc ? -1 : lock_nearest(files, NULL, false);

  if (rc == 0 && i < 0) {
    rc = files->lock_error ? cannot_lock(files, error) : all_claimed(files, error);
  }
  if (rc == 0) {
    move(files, i, claim);
  }
  return rc;
}

/* --- The other NICs --- */

/* The exclusive files that this process may claim. The local ranks divide all of them. Each
 * process takes only its home NIC if the number of local ranks is unknown. */
static unsigned exclusive_quota(const struct candidates *files)
{
  int ranks = files->topology.local_size, count = count_exclusive(files);

  if (ranks <= 0) {
    return 0;
  }
  return (unsigned)(count / ranks) +
         (files->topology.local_rank >= 0 && files->topology.local_rank < count % ranks);
}

static void take_more(struct harp_claims *claims, struct candidates *files, bool shareable,
                      unsigned most)
{
  int i;

  while (most-- > 0 && (i = lock_nearest(files, claims, shareable)) >= 0) {
    move(files, i, &claims->of[claims->count++]);
  }
}

static void take_others(struct harp_claims *claims, struct candidates *files)
{
  unsigned quota = exclusive_quota(files), used = !claims->of[0].shared;

  take_more(claims, files, true, HARP_DEVICES_MAX);
  if (quota > used) {
    take_more(claims, files, false, quota - used);
  }
}

/* --- The folder --- */

static int read_candidates(struct candidates *files, const char *root, char *error)
{
  const char *disable = getenv("HARP_DISABLE");
  int rc;

  if (disable && *disable && strcmp(disable, "0") != 0) {
    return harp_config_fail(error, -ECANCELED,
                            "HARP_DISABLE=%.16s in the environment: HARP declines; unset it "
                            "to use HARP",
                            disable);
  }
  rc = harp_conf_folder_read(&files->folder, harp_conf_folder_path(), error);
  if (rc == 0) {
    rc = harp_devices_find(&files->devices, &files->folder, root, error);
  }
  if (rc) {
    return rc;
  }
  harp_rank_topology_find(&files->topology, root);
  for (int i = 0; i < files->folder.count; i++) {
    files->distance[i] = distance(config_of(files, i), &files->topology, root);
  }
  return 0;
}

static int take(struct harp_claims *claims, struct candidates *files, const char *root, char *error)
{
  int rc = read_candidates(files, root, error);

  if (rc == 0) {
    claims->devices = files->devices;
    claims->of = calloc(files->devices.count, sizeof(*claims->of));
    if (!claims->of) {
      rc = harp_config_fail(error, -ENOMEM, "no memory to claim a NIC");
    }
  }
  if (rc == 0) {
    rc = take_home(&claims->of[0], files, error);
  }
  if (rc) {
    return rc;
  }
  claims->count = 1;
  if (!files->devices.one) {
    take_others(claims, files);
  }
  return 0;
}

int harp_claims_take_below(struct harp_claims *claims, const char *root, char *error)
{
  struct candidates *files = calloc(1, sizeof(*files));
  int rc;

  memset(claims, 0, sizeof(*claims));
  if (!files) {
    return harp_config_fail(error, -ENOMEM, "no memory to read the configuration");
  }
  rc = take(claims, files, root, error);
  if (rc) {
    harp_claims_release(claims);
  }
  harp_conf_folder_close(&files->folder);
  free(files);
  return rc;
}

int harp_claims_take(struct harp_claims *claims, char *error)
{
  return harp_claims_take_below(claims, "", error);
}

int harp_claim(struct harp_claim *claim, char *error)
{
  struct candidates *files = calloc(1, sizeof(*files));
  int rc;

  claim->fd = -1;
  if (!files) {
    return harp_config_fail(error, -ENOMEM, "no memory to read the configuration");
  }
  rc = read_candidates(files, "", error);
  if (rc == 0) {
    rc = take_home(claim, files, error);
  }
  harp_conf_folder_close(&files->folder);
  free(files);
  return rc;
}

void harp_claim_release(struct harp_claim *claim)
{
  if (claim->fd < 0) {
    return;
  }
  /* A child that was just forked may still have a copy of the descriptor. Unlocking ends the claim
   * for all copies. */
  flock(claim->fd, LOCK_UN);
  harp_claim_forget(claim);
}

void harp_claims_release(struct harp_claims *claims)
{
  for (unsigned i = 0; i < claims->count; i++) {
    harp_claim_release(&claims->of[i]);
  }
  free(claims->of);
  claims->of = NULL;
  claims->count = 0;
}

void harp_claim_forget(struct harp_claim *claim)
{
  if (claim->fd >= 0) {
    close(claim->fd);
  }
  claim->fd = -1;
}
