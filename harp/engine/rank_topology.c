/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harp/engine/config_values.h"
#include "harp/engine/rank_topology.h"

/*
 * The launchers' variables. torchrun and mpirun under SLURM set their own, and SLURM's then
 * describe the launcher instead of the rank. So SLURM comes last.
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

/* The variables for the rank in the job and the number of ranks, in the same order. A process that
 * is alone on its host may have only such variables. */
static const struct {
  const char *rank, *size;
} job_ranks[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"RANK", "WORLD_SIZE"},
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
    {"PMI_RANK", "PMI_SIZE"},
    {"PALS_RANKID", NULL},
    {"SLURM_PROCID", "SLURM_NTASKS"},
};

/* The variables for the job's name: the user's own, those of schedulers (Slurm, PBS, LSF, Flux,
 * PALS), then those of launchers (torchrun, PMIx, PMI, Open MPI 4). A scheduler's job may start
 * launchers one after another, and its name is the one that users know. */
static const char *const job_names[] = {
    "HARP_JOB",  "SLURM_JOB_ID",        "PBS_JOBID",      "LSB_JOBID", "FLUX_JOB_ID",
    "PALS_APID", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "PMI_JOBID", "OMPI_MCA_ess_base_jobid",
};

/* The text as a non-negative number; otherwise: the result if it is none. */
static int number_or(const char *text, int otherwise)
{
  char *end;
  long value;

  if (!text || *text < '0' || *text > '9') {
    return otherwise;
  }
  errno = 0;
  value = strtol(text, &end, 10);
  return errno == 0 && *end == '\0' && value <= INT_MAX ? (int)value : otherwise;
}

/* The number of tasks on this node, from SLURM_STEP_TASKS_PER_NODE, such as "8(x2),4", and
 * SLURM_NODEID. 0: unknown. */
static int slurm_local_size(void)
{
  const char *text = getenv("SLURM_STEP_TASKS_PER_NODE");
  long node = number_or(getenv("SLURM_NODEID"), -1);

  if (!text || node < 0) {
    return 0;
  }
  while (*text >= '0' && *text <= '9') {
    char *end;
    long tasks = strtol(text, &end, 10), nodes = 1;

    if (strncmp(end, "(x", 2) == 0) {
      nodes = strtol(end + 2, &end, 10);
      end += *end == ')';
    }
    if (node < nodes) {
      return tasks > 0 && tasks <= INT_MAX ? (int)tasks : 0;
    }
    node -= nodes;
    text = end + (*end == ',');
  }
  return 0;
}

static void find_job_rank(struct harp_rank_topology *topology)
{
  topology->rank = -1;
  topology->world_size = 0;
  for (size_t i = 0; topology->rank < 0 && i < sizeof(job_ranks) / sizeof(job_ranks[0]); i++) {
    topology->rank = number_or(getenv(job_ranks[i].rank), -1);
    if (topology->rank >= 0 && job_ranks[i].size) {
      topology->world_size = number_or(getenv(job_ranks[i].size), 0);
    }
  }
}

static void find_job(struct harp_rank_topology *topology)
{
  topology->job[0] = '\0';
  for (size_t i = 0; !topology->job[0] && i < sizeof(job_names) / sizeof(job_names[0]); i++) {
    const char *name = getenv(job_names[i]);

    /* torchrun without --rdzv-id has the name "none". */
    if (name && strcmp(name, "none") != 0) {
      snprintf(topology->job, sizeof(topology->job), "%s", name);
    }
  }
}

static void find_local_rank(struct harp_rank_topology *topology)
{
  topology->local_rank = -1;
  topology->local_size = 0;
  for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
    int rank = number_or(getenv(launchers[i].rank), -1);

    if (rank < 0) {
      continue;
    }
    topology->local_rank = rank;
    topology->local_size = launchers[i].size ? number_or(getenv(launchers[i].size), 0)
                                             : slurm_local_size();
    return;
  }
}

/*
 * The process's entry of CUDA_VISIBLE_DEVICES: the only one, or that of its local rank; "":
 * unknown. All GPUs are visible in their order without the variable. Blanks before an entry are
 * ignored and entries after -1 are hidden, as in CUDA.
 */
static void visible_entry(int local_rank, char *out, size_t size)
{
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  int index = 0;

  out[0] = '\0';
  if (!list) {
    if (local_rank >= 0) {
      snprintf(out, size, "%d", local_rank);
    }
    return;
  }
  if (strchr(list, ',')) {
    index = local_rank;
  }
  for (; index >= 0; index--) {
    list += strspn(list, " \t");
    if (strncmp(list, "-1", 2) == 0) {
      return;
    }
    if (index == 0) {
      snprintf(out, size, "%.*s", (int)strcspn(list, ", \t"), list);
    }
    list += strcspn(list, ",");
    if (!*list++) {
      return;
    }
  }
}

static int is_pci_id(const struct dirent *entry)
{
  char id[HARP_PCI_ID_SIZE];

  return harp_pci_id_parse(entry->d_name, id);
}

/* The driver's GPUs, in the order of their PCI ids. */
struct gpus {
  char folder[512];
  struct dirent **entries;
  int count;
};

/* The value of the line "KEY: VALUE" in the driver's information on a GPU; "": no such line. */
static void gpu_says(const struct gpus *gpus, int gpu, const char *key, char *out, size_t size)
{
  char path[sizeof(gpus->folder) + 300], line[256];
  FILE *file;

  out[0] = '\0';
  snprintf(path, sizeof(path), "%s/%s/information", gpus->folder, gpus->entries[gpu]->d_name);
  file = fopen(path, "re");
  if (!file) {
    return;
  }
  while (!out[0] && fgets(line, sizeof(line), file)) {
    const char *colon = strchr(line, ':');

    if (colon && strncmp(line, key, strlen(key)) == 0 && line + strlen(key) == colon) {
      colon += 1 + strspn(colon + 1, " \t");
      snprintf(out, size, "%.*s", (int)strcspn(colon, "\n"), colon);
    }
  }
  fclose(file);
}

/* Whether CUDA numbers the GPUs in the order of their PCI ids. CUDA puts the fastest GPU first, and
 * equal ones in that order. So the order is known if all are of one model, or if CUDA_DEVICE_ORDER
 * asks for it. */
static bool order_is_known(const struct gpus *gpus)
{
  const char *order = getenv("CUDA_DEVICE_ORDER");
  char first[128], other[128];

  if (order && strcmp(order, "PCI_BUS_ID") == 0) {
    return true;
  }
  for (int i = 0; i < gpus->count; i++) {
    gpu_says(gpus, i, "Model", i ? other : first, sizeof(first));
    if (i && strcmp(first, other) != 0) {
      return false;
    }
  }
  return true;
}

/* The GPU with this UUID; -1: none. An entry may be a UUID's prefix that matches only one GPU. */
static int gpu_with_uuid(const struct gpus *gpus, const char *uuid, size_t length)
{
  int found = -1;

  for (int i = 0; i < gpus->count; i++) {
    char whole[64];

    gpu_says(gpus, i, "GPU UUID", whole, sizeof(whole));
    if (strncmp(whole, uuid, length) != 0) {
      continue;
    }
    if (found >= 0) {
      return -1;
    }
    found = i;
  }
  return found;
}

/* The GPU that an entry names; -1: unknown without CUDA. Older drivers name a MIG instance
 * MIG-GPU-<the GPU's UUID>/<instance>/<instance>. Newer ones give it a UUID of its own, which is of
 * use only on a host with one GPU. */
static int gpu_named(const struct gpus *gpus, const char *entry)
{
  if (strncmp(entry, "MIG-GPU-", 8) == 0) {
    return gpu_with_uuid(gpus, entry + 4, strcspn(entry + 4, "/"));
  }
  if (strncmp(entry, "MIG-", 4) == 0) {
    return gpus->count == 1 ? 0 : -1;
  }
  if (strncmp(entry, "GPU-", 4) == 0) {
    return gpu_with_uuid(gpus, entry, strlen(entry));
  }
  return order_is_known(gpus) ? number_or(entry, -1) : -1;
}

static void find_gpu(struct harp_rank_topology *topology, const char *root)
{
  struct gpus gpus;
  char wanted[64];
  int found;

  topology->gpu[0] = '\0';
  visible_entry(topology->local_rank, wanted, sizeof(wanted));
  snprintf(gpus.folder, sizeof(gpus.folder), "%s/proc/driver/nvidia/gpus", root);
  gpus.count = wanted[0] ? scandir(gpus.folder, &gpus.entries, is_pci_id, alphasort) : -1;
  if (gpus.count < 0) {
    return;
  }
  found = gpu_named(&gpus, wanted);
  if (found >= 0 && found < gpus.count) {
    harp_pci_id_parse(gpus.entries[found]->d_name, topology->gpu);
  }
  for (int i = 0; i < gpus.count; i++) {
    free(gpus.entries[i]);
  }
  free(gpus.entries);
}

void harp_rank_topology_find(struct harp_rank_topology *topology, const char *root)
{
  find_job(topology);
  find_job_rank(topology);
  find_local_rank(topology);
  find_gpu(topology, root);
}
