/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/dpdk/eal.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dpdk_glue/fail.h"

enum {
  PLAIN_MIB = 1024, /* address space without hugepages; memory is allocated when it is touched */
  ARGUMENTS = 20,
  COMPLAINT_SIZE = 200,
};

static struct {
  bool tried, running;
  bool huge, physical;
  uint32_t mib;
  char memory[64];
} eal;

/* --- DPDK's log --- */

static pthread_mutex_t complaint_lock = PTHREAD_MUTEX_INITIALIZER;
static char complaint[COMPLAINT_SIZE];
static size_t complaint_used;
static bool complaint_whole; /* the first line is the cause; later lines only follow from it */

static ssize_t keep_complaint(void *cookie, const char *text, size_t length)
{
  pthread_mutex_lock(&complaint_lock);
  for (size_t i = 0; i < length && !complaint_whole; i++) {
    complaint_whole = text[i] == '\n' && complaint_used > 0;
    if (text[i] >= ' ' && text[i] != '"' && complaint_used < sizeof(complaint) - 1) {
      complaint[complaint_used++] = text[i];
    }
  }
  complaint[complaint_used] = '\0';
  pthread_mutex_unlock(&complaint_lock);
  return (ssize_t)length;
}

const char *harp_eal_complaint(void) { return complaint; }

void harp_eal_forget_complaint(void)
{
  pthread_mutex_lock(&complaint_lock);
  complaint_used = 0;
  complaint_whole = false;
  complaint[0] = '\0';
  pthread_mutex_unlock(&complaint_lock);
}

static int listen_to_log(void)
{
  FILE *log = fopencookie(NULL, "w", (cookie_io_functions_t){.write = keep_complaint});
  if (!log) {
    return -ENOMEM;
  }
  setvbuf(log, NULL, _IOLBF, 0);
  return rte_openlog_stream(log) < 0 ? -EIO : 0;
}

/* --- Memory --- */

static uint64_t read_number(const char *folder, const char *entry, const char *name)
{
  char path[320];
  unsigned long long value = 0;
  snprintf(path, sizeof(path), "%s/%s/%s", folder, entry, name);
  FILE *file = fopen(path, "re");
  if (file) {
    if (fscanf(file, "%llu", &value) != 1) {
      value = 0;
    }
    fclose(file);
  }
  return value;
}

/* Returns the MiB in free hugepages. *page_kib: the smallest size with a free page. */
static uint64_t free_hugepages(uint64_t *page_kib)
{
  static const char folder[] = "/sys/kernel/mm/hugepages";
  uint64_t kib = 0, size;
  *page_kib = 0;
  DIR *sizes = opendir(folder);
  for (struct dirent *entry; sizes && (entry = readdir(sizes));) {
    if (sscanf(entry->d_name, "hugepages-%lukB", &size) != 1) {
      continue;
    }
    uint64_t count = read_number(folder, entry->d_name, "free_hugepages");
    kib += count * size;
    if (count && (!*page_kib || size < *page_kib)) {
      *page_kib = size;
    }
  }
  if (sizes) {
    closedir(sizes);
  }
  return kib >> 10;
}

static int choose_memory(const struct harp_eal_request *request, char *error)
{
  uint64_t page_kib, free_mib = free_hugepages(&page_kib);
  uint32_t needed = request->hugepages ? request->hugepages : request->need_mib;
  eal.huge = free_mib >= needed;
  eal.mib = eal.huge ? needed : PLAIN_MIB;
  if (!eal.huge && request->hugepages) {
    return harp_port_fail(error, -ENOMEM,
                          "dpdk:%.150s: hugepages = %u asks for more than the %lu "
                          "MiB that are free: set some aside (sysctl vm.nr_hugepages), lower the "
                          "number, or leave it out to do without",
                          request->device, request->hugepages, (unsigned long)free_mib);
  }
  if (!eal.huge && request->physical) {
    return harp_port_fail(error, -ENOMEM,
                          "dpdk:%.150s: without an IOMMU the device needs "
                          "hugepages, %u MiB, and %lu are free: set some aside (sysctl "
                          "vm.nr_hugepages)",
                          request->device, needed, (unsigned long)free_mib);
  }
  if (eal.huge) {
    snprintf(eal.memory, sizeof(eal.memory), "hugepages of %lu MiB",
             (unsigned long)(page_kib >> 10));
  } else {
    snprintf(eal.memory, sizeof(eal.memory), "no hugepages");
  }
  return 0;
}

/* --- Start --- */

/* Lets EAL's one lcore run on every CPU of this process, so that EAL does not narrow the
 * affinity. */
static void name_cores(char *out, size_t size)
{
  cpu_set_t set;
  size_t used = (size_t)snprintf(out, size, "--lcores=0@(");
  const char *separator = "";
  if (sched_getaffinity(0, sizeof(set), &set) < 0) {
    CPU_ZERO(&set);
    CPU_SET(0, &set);
  }
  for (unsigned cpu = 0; cpu < CPU_SETSIZE && used < size - 8; cpu++) {
    if (CPU_ISSET(cpu, &set)) {
      used += (size_t)snprintf(out + used, size - used, "%s%u", separator, cpu);
      separator = ",";
    }
  }
  snprintf(out + used, size - used, ")");
}

static void initialize(const struct harp_eal_request *request)
{
  char cores[4096], memory[16], prefix[64];
  char *arguments[ARGUMENTS];
  int count = 0;
  name_cores(cores, sizeof(cores));
  snprintf(memory, sizeof(memory), "%u", eal.huge ? request->hugepages : PLAIN_MIB);
  snprintf(prefix, sizeof(prefix), "--file-prefix=harp-%d", (int)getpid());
  const char *always[] = {"harp", cores, "--no-telemetry", "--log-level=lib.*:error",
                          "--log-level=pmd.*:error",
                          /* An allow list with an address that no bus has. EAL then probes no
                           * NIC by itself; HARP attaches NICs by name. */
                          "-a", "ffff:ff:1f.7", eal.physical ? "--iova-mode=pa" : "--iova-mode=va"};
  const char *huge[] = {"--in-memory", "--single-file-segments"};
  const char *plain[] = {"--no-huge", "--no-shconf", prefix};
  for (size_t i = 0; i < sizeof(always) / sizeof(always[0]); i++) {
    arguments[count++] = (char *)(uintptr_t)always[i];
  }
  for (size_t i = 0; eal.huge && i < sizeof(huge) / sizeof(huge[0]); i++) {
    arguments[count++] = (char *)(uintptr_t)huge[i];
  }
  for (size_t i = 0; !eal.huge && i < sizeof(plain) / sizeof(plain[0]); i++) {
    arguments[count++] = (char *)(uintptr_t)plain[i];
  }
  if (!eal.huge || request->hugepages) {
    arguments[count++] = (char *)(uintptr_t)"-m";
    arguments[count++] = memory;
  }
  arguments[count] = NULL;
  eal.running = rte_eal_init(count, arguments) >= 0;
  /* HARP shares nothing with other processes, so the runtime folder stays empty. */
  if (eal.running) {
    rmdir(rte_eal_get_runtime_dir());
  }
}

static int start(const struct harp_eal_request *request, char *error)
{
  int rc = choose_memory(request, error);
  if (rc < 0) {
    return rc;
  }
  eal.tried = true;
  eal.physical = request->physical;
  if (listen_to_log() < 0) {
    return harp_port_fail(error, -ENOMEM, "dpdk:%.150s: out of memory", request->device);
  }
  initialize(request);
  if (!eal.running) {
    return harp_port_fail(error, -EIO, "dpdk:%.150s: DPDK does not start: %s (%s)", request->device,
                          rte_strerror(rte_errno), complaint);
  }
  return 0;
}

int harp_eal_start(const struct harp_eal_request *request, char *error)
{
  harp_eal_forget_complaint();
  if (!eal.tried) {
    return start(request, error);
  }
  if (!eal.running) {
    return harp_port_fail(error, -EIO,
                          "dpdk:%.150s: DPDK failed to start earlier in this process, and "
                          "it can start only once; start a new process",
                          request->device);
  }
  if (request->physical != eal.physical || (request->hugepages && !eal.huge)) {
    return harp_port_fail(error, -EBUSY,
                          "dpdk:%.150s: DPDK already runs in this process, with %s "
                          "and %s addresses; a device of another kind needs a process of its own",
                          request->device, eal.memory, eal.physical ? "physical" : "virtual");
  }
  return 0;
}

const char *harp_eal_memory(void) { return eal.memory; }

uint32_t harp_eal_mib(void) { return eal.mib; }

/* --- The thread --- */

struct task {
  void (*function)(void *argument);
  void *argument;
};

static void *run(void *argument)
{
  struct task *task = argument;
  pthread_setname_np(pthread_self(), "harp-dpdk");
  task->function(task->argument);
  return NULL;
}

int harp_eal_thread(void (*function)(void *argument), void *argument)
{
  struct task task = {function, argument};
  sigset_t all, before;
  pthread_t thread;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(&thread, NULL, run, &task);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error) {
    return -error;
  }
  pthread_join(thread, NULL);
  return 0;
}
