/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harp/engine/config_values.h"
#include "harp/engine/place.h"

/*
 * The launchers' variables. torchrun and mpirun under SLURM set their own beside
 * SLURM's, which then describe the launcher and not the rank: SLURM comes last.
 */
static const struct {
  const char *rank, *size;
} launchers[] = {
  {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
  {"LOCAL_RANK", "LOCAL_WORLD_SIZE"},
  {"MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"},
  {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
  {"PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"},
  {"PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"},
  {"SLURM_LOCALID", NULL},
};

/* A non-negative number that is all of the text, or otherwise. */
static int number_or(const char *text, int otherwise)
{
  char *end;
  long value;

  if (!text || *text < '0' || *text > '9')
    return otherwise;
  errno = 0;
  value = strtol(text, &end, 10);
  return errno == 0 && *end == '\0' && value <= INT_MAX ? (int)value : otherwise;
}

/* SLURM_STEP_TASKS_PER_NODE is "8(x2),4": this node's share is found by counting
 * up to SLURM_NODEID. 0: unknown. */
static int slurm_local_size(void)
{
  const char *text = getenv("SLURM_STEP_TASKS_PER_NODE");
  long node = number_or(getenv("SLURM_NODEID"), -1);

  if (!text || node < 0)
    return 0;
  while (*text >= '0' && *text <= '9') {
    char *end;
    long tasks = strtol(text, &end, 10), nodes = 1;

    if (strncmp(end, "(x", 2) == 0) {
      nodes = strtol(end + 2, &end, 10);
      end += *end == ')';
    }
    if (node < nodes)
      return tasks > 0 && tasks <= INT_MAX ? (int)tasks : 0;
    node -= nodes;
    text = end + (*end == ',');
  }
  return 0;
}

static void find_rank(struct harp_place *place)
{
  place->local_rank = -1;
  place->local_size = 0;
  for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
    int rank = number_or(getenv(launchers[i].rank), -1);

    if (rank < 0)
      continue;
    place->local_rank = rank;
    place->local_size = launchers[i].size ? number_or(getenv(launchers[i].size), 0)
                                          : slurm_local_size();
    return;
  }
}

/* The process's entry of CUDA_VISIBLE_DEVICES: the only one, or its rank's.
 * "": unknown. Without the variable every GPU is visible, in their order. */
static void visible_entry(int local_rank, char *out, size_t size)
{
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  int index = 0;

  out[0] = '\0';
  if (!list) {
    if (local_rank >= 0)
      snprintf(out, size, "%d", local_rank);
    return;
  }
  if (strchr(list, ','))
    index = local_rank;
  for (; index > 0 && list; index--) {
    list = strchr(list, ',');
    list = list ? list + 1 : NULL;
  }
  if (list && index == 0)
    snprintf(out, size, "%.*s", (int)strcspn(list, ","), list);
}

static int is_pci_id(const struct dirent *entry)
{
  char id[16];

  return harp_pci_id_parse(entry->d_name, id);
}

/* The driver writes "GPU UUID: GPU-8c3b..." into each GPU's information. An entry
 * of CUDA_VISIBLE_DEVICES may be a prefix of it. */
static bool has_uuid(const char *gpus, const char *id, const char *uuid)
{
  char path[512], line[256];
  bool found = false;
  FILE *file;

  snprintf(path, sizeof(path), "%s/%s/information", gpus, id);
  file = fopen(path, "re");
  if (!file)
    return false;
  while (!found && fgets(line, sizeof(line), file)) {
    const char *value = strstr(line, "GPU-");
    found = strncmp(line, "GPU UUID", 8) == 0 && value && strncmp(value, uuid, strlen(uuid)) == 0;
  }
  fclose(file);
  return found;
}

/* CUDA counts equal GPUs in the order of their PCI ids, as the folder's sorted
 * names do. */
static void find_gpu(struct harp_place *place, const char *gpus)
{
  struct dirent **entries;
  char wanted[64];
  int count, index;

  place->gpu[0] = '\0';
  visible_entry(place->local_rank, wanted, sizeof(wanted));
  count = wanted[0] ? scandir(gpus, &entries, is_pci_id, alphasort) : -1;
  if (count < 0)
    return;
  index = number_or(wanted, -1);
  for (int i = 0; i < count; i++) {
    bool by_uuid = strncmp(wanted, "GPU-", 4) == 0 && has_uuid(gpus, entries[i]->d_name, wanted);

    if (i == index || by_uuid)
      harp_pci_id_parse(entries[i]->d_name, place->gpu);
    free(entries[i]);
  }
  free(entries);
}

void harp_place_find(struct harp_place *place, const char *gpus)
{
  find_rank(place);
  find_gpu(place, gpus ? gpus : "/proc/driver/nvidia/gpus");
}
