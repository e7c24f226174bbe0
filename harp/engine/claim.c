/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "harp/engine/claim.h"
#include "harp/engine/lock_holder.h"
#include "harp/engine/nic_distance.h"
#include "harp/engine/rank_topology.h"

enum {
  FILES_MAX = 256,
  /* distances */
  OWN_GPU = 0,
  ANY_GPU = 1, /* plus the NIC's distance to the process's GPU */
  FOREIGN_GPU = ANY_GPU + HARP_NEAR_UNKNOWN + 1,
  NOWHERE,
};

struct candidate {
  int fd;
  unsigned distance; /* from this process; a smaller value is nearer */
  struct harp_config config;
};

struct candidates {
  const char *folder;
  int count;
  struct candidate *of;
};

__attribute__((format(printf, 3, 4))) static int fail(char *error, int code, const char *format,
                                                      ...)
{
  va_list arguments;

  va_start(arguments, format);
  vsnprintf(error, HARP_CLAIM_ERROR_SIZE, format, arguments);
  va_end(arguments);
  return code;
}

static int is_configuration(const struct dirent *entry)
{
  size_t length = strlen(entry->d_name);

  return length > 5 && strncmp(entry->d_name, "ztcp", 4) == 0 &&
         strcmp(entry->d_name + length - 5, ".conf") == 0;
}

/* The file is read through the descriptor that is locked later, so that the process uses the text
 * that it has claimed. */
static int open_candidate(struct candidate *candidate, const char *folder, const char *name,
                          char *error)
{
  char path[sizeof(candidate->config.path)];

  if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path))
    return fail(error, -ENAMETOOLONG,
                "%.200s: the folder's name is too long; shorten "
                "HARP_CONF_DIR",
                folder);
  candidate->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (candidate->fd < 0) {
    int code = errno;
    return fail(error, -code, "%.200s: cannot be opened: %s; make it readable for this user", path,
                strerror(code));
  }
  return harp_config_read(candidate->fd, path, &candidate->config, error);
}

static void close_candidates(struct candidates *files)
{
  for (int i = 0; i < files->count; i++)
    if (files->of[i].fd >= 0)
      close(files->of[i].fd);
  free(files->of);
}

static int open_candidates(struct candidates *files, struct dirent **entries, int count,
                           char *error)
{
  int rc = 0;

  files->count = 0;
  files->of = calloc((size_t)count, sizeof(*files->of));
  if (!files->of)
    return fail(error, -ENOMEM, "%.200s: no memory to read %d files", files->folder, count);
  while (rc == 0 && files->count < count) {
    rc = open_candidate(&files->of[files->count], files->folder, entries[files->count]->d_name,
                        error);
    files->count++;
  }
  if (rc)
    close_candidates(files);
  return rc;
}

static int read_folder(struct candidates *files, char *error)
{
  struct dirent **entries;
  int count = scandir(files->folder, &entries, is_configuration, versionsort);
  int rc;

  if (count < 0) {
    rc = errno;
    return fail(error, -rc,
                "no configuration: folder %.200s: %s; run 'harp setup', or name the "
                "folder in HARP_CONF_DIR",
                files->folder, strerror(rc));
  }
  if (count == 0)
    rc = fail(error, -ENOENT,
              "no configuration: folder %.200s holds no ztcp*.conf; run "
              "'harp setup', or name the folder in HARP_CONF_DIR",
              files->folder);
  else if (count > FILES_MAX)
    rc = fail(error, -EINVAL, "%.200s holds %d ztcp*.conf and HARP reads at most %d; remove some",
              files->folder, count, FILES_MAX);
  else
    rc = open_candidates(files, entries, count, error);
  for (int i = 0; i < count; i++)
    free(entries[i]);
  free(entries);
  return rc;
}

/* Checks that there is a file for every local rank. A shareable file serves any number of ranks. */
static int check_number(const struct candidates *files, const struct harp_rank_topology *place,
                        char *error)
{
  for (int i = 0; i < files->count; i++)
    if (harp_config_shareable(&files->of[i].config))
      return 0;
  if (place->local_size <= files->count)
    return 0;
  return fail(error, -EUSERS,
              "%d files for %d local ranks: %.200s has too few ztcp*.conf, so "
              "every rank on this host declines; add %d, or share one with address = kernel",
              files->count, place->local_size, files->folder, place->local_size - files->count);
}

/* The distance of a NIC. A NIC that is assigned to another GPU is the last choice. If this
 * process's GPU is unknown, all NICs have the same distance, and the local rank decides. */
static unsigned distance(const struct harp_config *config, const struct harp_rank_topology *place,
                         const char *root)
{
  if (place->gpu[0] && config->gpu[0])
    return strcmp(config->gpu, place->gpu) == 0 ? OWN_GPU : FOREIGN_GPU;
  return ANY_GPU + harp_nic_distance(config, place->gpu, root);
}

static bool try_lock(struct candidate *candidate)
{
  int kind = harp_config_shareable(&candidate->config) ? LOCK_SH : LOCK_EX;
  int rc;

  do
    rc = flock(candidate->fd, kind | LOCK_NB);
  while (rc < 0 && errno == EINTR);
  return rc == 0;
}

static unsigned next_distance(const struct candidates *files, unsigned least)
{
  unsigned next = NOWHERE;

  for (int i = 0; i < files->count; i++)
    if (files->of[i].distance >= least && files->of[i].distance < next)
      next = files->of[i].distance;
  return next;
}

/* Locks a file at this distance: the one that matches the local rank, or the next free one. So
 * ranks with GPUs behind one PCI switch get different NICs of that switch. Returns the index of the
 * locked file, or -1. */
static int lock_one(struct candidates *files, unsigned away, int local_rank)
{
  int same[FILES_MAX], count = 0, rank = local_rank > 0 ? local_rank : 0;

  for (int i = 0; i < files->count; i++)
    if (files->of[i].distance == away)
      same[count++] = i;
  for (int step = 0; step < count; step++) {
    int i = same[(rank % count + step) % count];

    if (try_lock(&files->of[i]))
      return i;
  }
  return -1;
}

/* Locks the nearest free file. Returns its index, or -1. */
static int choose(struct candidates *files, const struct harp_rank_topology *place,
                  const char *root)
{
  unsigned away;
  int chosen = -1;

  for (int i = 0; i < files->count; i++)
    files->of[i].distance = distance(&files->of[i].config, place, root);
  for (away = next_distance(files, 0); chosen < 0 && away < NOWHERE;
       away = next_distance(files, away + 1))
    chosen = lock_one(files, away, place->local_rank);
  return chosen;
}

/*
 * The lowest speed of all NICs, Mbit/s. All processes of a host must report one speed to NCCL, so
 * it comes from the files of the folder and from sysfs only: a process cannot open a NIC that
 * another process uses.
 */
static uint32_t slowest(const struct candidates *files, const char *root)
{
  uint32_t least = UINT32_MAX;

  for (int i = 0; i < files->count; i++) {
    const struct harp_config *config = &files->of[i].config;
    uint32_t speed = config->speed_mbps ? config->speed_mbps : harp_nic_speed(config, root);

    if (speed == 0)
      speed = HARP_SPEED_UNKNOWN_MBPS;
    least = speed < least ? speed : least;
  }
  return least;
}

static int all_claimed(const struct candidates *files, char *error)
{
  char holders[256] = "";
  size_t used = 0;

  for (int i = 0; i < files->count && used < sizeof(holders); i++) {
    const char *path = files->of[i].config.path;
    char who[96];

    harp_lock_holder(files->of[i].fd, who, sizeof(who));
    used += (size_t)snprintf(holders + used, sizeof(holders) - used, "%s%s by %s", i ? ", " : "",
                             strrchr(path, '/') + 1, who);
  }
  return fail(error, -EBUSY,
              "all ztcp*.conf in %.120s are claimed: %s; end one of these, or add a "
              "file",
              files->folder, holders);
}

static int take(struct harp_claim *claim, struct candidates *files, const char *root, char *error)
{
  struct harp_rank_topology place;
  int rc, i;

  harp_rank_topology_find(&place, root);
  rc = check_number(files, &place, error);
  if (rc)
    return rc;
  i = choose(files, &place, root);
  if (i < 0)
    return all_claimed(files, error);
  claim->fd = files->of[i].fd;
  claim->config = files->of[i].config;
  claim->shared = harp_config_shareable(&claim->config);
  claim->slowest_mbps = slowest(files, root);
  files->of[i].fd = -1;
  return 0;
}

int harp_claim_below(struct harp_claim *claim, const char *root, char *error)
{
  const char *disable = getenv("HARP_DISABLE"), *folder = getenv("HARP_CONF_DIR");
  struct candidates files = {.folder = folder && *folder ? folder : HARP_CONF_DIR_DEFAULT};
  int rc;

  claim->fd = -1;
  if (disable && *disable && strcmp(disable, "0") != 0)
    return fail(error, -ECANCELED,
                "HARP_DISABLE=%.16s in the environment: HARP declines; unset it "
                "to use HARP",
                disable);
  rc = read_folder(&files, error);
  if (rc)
    return rc;
  rc = take(claim, &files, root, error);
  close_candidates(&files);
  return rc;
}

int harp_claim(struct harp_claim *claim, char *error) { return harp_claim_below(claim, "", error); }

void harp_claim_release(struct harp_claim *claim)
{
  if (claim->fd < 0)
    return;
  /* A child that was just forked may still have a copy of the descriptor. Unlocking ends the claim
   * for all copies. */
  flock(claim->fd, LOCK_UN);
  harp_claim_forget(claim);
}

void harp_claim_forget(struct harp_claim *claim)
{
  if (claim->fd >= 0)
    close(claim->fd);
  claim->fd = -1;
}
