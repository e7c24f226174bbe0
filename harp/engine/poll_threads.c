/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/engine/poll_threads.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "dpdk_glue/local_ports.h"
#include "harp/engine/agent_socket.h"
#include "harp/engine/rank_topology.h"

enum {
  CGROUP_PATH_SIZE = 4096,
  /* What a job takes of local ports and open files, at most as a rule: */
  PORTS_LEAST = 64,    /* of an instance: listeners, and ports that are not free yet */
  PORTS_OF_PEER = 8,   /* of an instance: four NCCL channels in each direction */
  RANKS_UNKNOWN = 8,   /* ranks of a job whose launcher does not tell */
  FILES_OF_JOB = 512,  /* of NCCL and the application */
  PORTS_OF_AGENT = 512 /* harp agent's default --block */
};

/* --- The CPU quota (Linux, Documentation/admin-guide/cgroup-v2.rst, cpu.max) --- */

/* Reads at most two numbers of a file. "max" counts as no number. Returns how many there are. */
static int read_numbers(const char *folder, const char *name, long long *first, long long *second)
{
  char path[CGROUP_PATH_SIZE + 64];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "re");
  if (!file) {
    return 0;
  }
  int count = fscanf(file, "%lld %lld", first, second);
  fclose(file);
  return count > 0 ? count : 0;
}

/* The quota of one group in whole CPUs, at least 1; UINT_MAX: none. */
static unsigned group_quota(const char *folder)
{
  long long quota = 0, period = 0, rest;
  bool limited = read_numbers(folder, "cpu.max", &quota, &period) == 2 ||
                 (read_numbers(folder, "cpu.cfs_quota_us", &quota, &rest) == 1 &&
                  read_numbers(folder, "cpu.cfs_period_us", &period, &rest) == 1);
  if (!limited || quota <= 0 || period <= 0) {
    return UINT_MAX;
  }
  long long cpus = quota / period;
  return cpus < 1 ? 1 : cpus < UINT_MAX ? (unsigned)cpus : UINT_MAX;
}

/* The smallest quota of a group and its ancestors. A container may not see the upper folders, so
 * folders that do not exist are passed over. */
static unsigned smallest_quota(const char *mount, const char *group)
{
  char folder[CGROUP_PATH_SIZE];
  unsigned smallest = UINT_MAX;
  size_t top = strlen(mount);
  if ((size_t)snprintf(folder, sizeof folder, "%s%s", mount, group) >= sizeof folder) {
    return UINT_MAX;
  }
  for (;;) {
    unsigned quota = group_quota(folder);
    smallest = quota < smallest ? quota : smallest;
    char *slash = strrchr(folder + top, '/');
    if (!slash) {
      return smallest;
    }
    *slash = '\0';
  }
}

static bool has_cpu_controller(char *controllers)
{
  char *rest = controllers;
  for (char *name = strsep(&rest, ","); name; name = strsep(&rest, ",")) {
    if (strcmp(name, "cpu") == 0) {
      return true;
    }
  }
  return false;
}

/* The process's quota in whole CPUs; UINT_MAX: none. A line of /proc/self/cgroup is
 * "0::PATH" for version 2, and "NUMBER:CONTROLLERS:PATH" for version 1. */
static unsigned process_quota(const char *root)
{
  char path[CGROUP_PATH_SIZE], line[CGROUP_PATH_SIZE], mount[CGROUP_PATH_SIZE];
  unsigned smallest = UINT_MAX;
  snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  FILE *file = fopen(path, "re");
  while (file && fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = '\0';
    char *group = line;
    strsep(&group, ":");
    char *controllers = group ? strsep(&group, ":") : NULL;
    if (!group || (*controllers && !has_cpu_controller(controllers))) {
      continue;
    }
    snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s", root, *controllers ? "/cpu" : "");
    unsigned quota = smallest_quota(mount, group);
    smallest = quota < smallest ? quota : smallest;
  }
  if (file) {
    fclose(file);
  }
  return smallest;
}

/* --- The choice --- */

unsigned harp_usable_cpus(const char *root)
{
  cpu_set_t set;
  unsigned cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? (unsigned)CPU_COUNT(&set) : 1;
  unsigned quota = process_quota(root);
  return quota < cpus ? quota : cpus;
}

static unsigned local_ranks(const struct harp_rank_topology *topology)
{
  return topology->local_size > 0 ? (unsigned)topology->local_size : 1;
}

/* One worker per instance and one caller for each local rank, and two spare CPUs. */
static unsigned wanted_cpus(unsigned instances, unsigned ranks)
{
  return (instances + 1) * ranks + 2;
}

/* Each instance has ports of its own for its flows and listeners, so several need as many times the
 * ports of one. */
static uint64_t wanted_ports(unsigned instances, const struct harp_rank_topology *topology)
{
  unsigned ranks = topology->world_size > 0 ? (unsigned)topology->world_size : RANKS_UNKNOWN;
  return (uint64_t)instances * (PORTS_LEAST + (uint64_t)PORTS_OF_PEER * ranks);
}

/* The local ports of the range from which HARP takes them. At the kernel's address without the key
 * `tcp_ports`, the kernel grants them (ip(7), ip_local_port_range). */
static uint64_t ports_in_range(const struct harp_config *config, const char *root)
{
  long long first = config->tcp_ports.first, last = config->tcp_ports.last;
  char folder[CGROUP_PATH_SIZE];
  snprintf(folder, sizeof folder, "%s/proc/sys/net/ipv4", root);
  bool known = first || read_numbers(folder, "ip_local_port_range", &first, &last) == 2;
  return known && first <= last ? (uint64_t)(last - first) + 1 : UINT16_MAX;
}

/* The local ports that this rank may hold. The ranks of a host share those of the kernel's address,
 * but the agent gives each process a block of its own. */
static uint64_t available_ports(const struct harp_config *config,
                                const struct harp_rank_topology *topology, const char *root)
{
  uint64_t range = ports_in_range(config, root);
  if (!config->address.kernel) {
    return range;
  }
  if (harp_agent_socket()) {
    return config->tcp_ports.first ? range : PORTS_OF_AGENT;
  }
  range /= local_ranks(topology);
  return range < HARP_LOCAL_HELD ? range : HARP_LOCAL_HELD;
}

/* A job that runs with one instance must not fail for want of ports because it has more by default.
 * At the kernel's address, each port is an open file, too. */
static bool ports_suffice(const struct harp_config *config, unsigned instances,
                          const struct harp_rank_topology *topology, const char *root)
{
  struct rlimit files;
  uint64_t wanted = wanted_ports(instances, topology);
  if (wanted > available_ports(config, topology, root)) {
    return false;
  }
  return !config->address.kernel || getrlimit(RLIMIT_NOFILE, &files) != 0 ||
         wanted + FILES_OF_JOB <= files.rlim_cur;
}

/* Several workers copy faster than one (docs/decisions/0061-several-instances.md). More ranks or
 * NICs have several workers together. Four workers need twice the CPUs that spin. */
unsigned harp_instances_choose(const struct harp_config *config, unsigned nics, unsigned cpus,
                               const char *root)
{
  if (config->instances) {
    return config->instances;
  }
  if (!harp_config_has_scheme(config->device, "packet") || strcmp(config->threads, "caller") == 0) {
    return 1;
  }
  struct harp_rank_topology topology;
  harp_rank_topology_find(&topology, root);
  unsigned ranks = local_ranks(&topology);
  /* Flow i of each link is on instance i, so instances beyond the flows would be idle. */
  unsigned flows = config->flows ? config->flows : UINT_MAX;
  if (flows >= 4 && ranks * nics == 1 && cpus >= 2 * wanted_cpus(4, ranks) &&
      ports_suffice(config, 4, &topology, root)) {
    return 4;
  }
  if (flows >= 2 && ranks * nics <= 2 && cpus >= wanted_cpus(2, ranks) &&
      ports_suffice(config, 2, &topology, root)) {
    return 2;
  }
  return 1;
}

uint64_t harp_instances_ports(unsigned instances, const char *root)
{
  struct harp_rank_topology topology;
  harp_rank_topology_find(&topology, root);
  return wanted_ports(instances, &topology);
}

void harp_poll_threads_choose(struct harp_poll_threads *threads, const struct harp_config *config,
                              const char *root)
{
  struct harp_rank_topology topology;
  harp_rank_topology_find(&topology, root);
  threads->cpus = harp_usable_cpus(root);
  threads->wanted = wanted_cpus(config->instances, local_ranks(&topology));
  threads->callers = strcmp(config->threads, "auto") == 0 ? threads->cpus < threads->wanted
                                                          : strcmp(config->threads, "caller") == 0;
}
