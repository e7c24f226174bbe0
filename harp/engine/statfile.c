/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "harp/engine/log.h"
#include "harp/engine/statfile.h"

/* Offsets and sizes of a file's parts, bytes. */
struct layout {
  size_t table, instances, stride, flows, size;
};

static size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

static struct layout lay_out(unsigned instances)
{
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  struct layout at;

  at.table = round_up(sizeof(struct harp_stat_header), 64);
  at.instances = round_up(at.table + HARP_COUNTERS * sizeof(struct harp_stat_counter), page);
  at.stride = round_up(HARP_COUNTERS * sizeof(uint64_t), page);
  at.flows = at.instances + instances * at.stride;
  at.size = round_up(at.flows + HARP_STAT_FLOWS * sizeof(struct harp_stat_flow), page);
  return at;
}

/* Maps a new file, and owns its descriptor if that succeeds. */
static int map_descriptor(struct harp_statfile *file, int fd, size_t size)
{
  void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

  if (map == MAP_FAILED) {
    return -errno;
  }
  file->fd = fd;
  file->map = map;
  return 0;
}

static int map_file(struct harp_statfile *file, const char *folder, size_t size)
{
  int fd = harp_rundir_create(folder, size, file->path), rc;

  if (fd < 0) {
    return fd;
  }
  rc = map_descriptor(file, fd, size);
  if (rc) {
    unlink(file->path);
    close(fd);
  }
  return rc;
}

static int map_without_path(struct harp_statfile *file, size_t size)
{
  int fd = harp_rundir_create_in_memory(size), rc;

  file->path[0] = '\0';
  if (fd < 0) {
    return fd;
  }
  rc = map_descriptor(file, fd, size);
  if (rc) {
    close(fd);
  }
  return rc;
}

static int map_memory(struct harp_statfile *file, size_t size)
{
  void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

  file->fd = -1;
  file->path[0] = '\0';
  file->map = map;
  return map == MAP_FAILED ? -ENOMEM : 0;
}

/* Tries the configured folder, the fallback, a file without a path, then plain memory. Logs at most
 * one line. */
static int map_somewhere(struct harp_statfile *file, size_t size)
{
  const char *configured = harp_rundir_configured();
  char fallback[64];
  int first = map_file(file, configured, size), second;

  if (first == 0) {
    harp_rundir_sweep(configured);
    return 0;
  }
  second = harp_rundir_fallback(fallback, sizeof(fallback));
  if (second == 0) {
    second = map_file(file, fallback, size);
  }
  if (second == 0) {
    harp_log_post(HARP_LOG_WARN,
                  "run directory %s: %s; statistics go to %s instead: run "
                  "'harp setup', or name a writable folder in HARP_RUN_DIR",
                  configured, strerror(-first), fallback);
    harp_rundir_sweep(fallback);
    return 0;
  }
  if (map_without_path(file, size) == 0) {
    harp_log_post(HARP_LOG_WARN,
                  "run directory %s: %s, and %s: %s; only root sees this process, by 'harp stat "
                  "--containers': name a writable folder in HARP_RUN_DIR",
                  configured, strerror(-first), fallback, strerror(-second));
    return 0;
  }
  harp_log_post(HARP_LOG_WARN,
                "run directory %s: %s, and %s: %s; harp stat cannot see this "
                "process: name a writable folder in HARP_RUN_DIR",
                configured, strerror(-first), fallback, strerror(-second));
  return map_memory(file, size);
}

static void copy(char *out, size_t size, const char *text)
{
  snprintf(out, size, "%s", text ? text : "");
}

static void write_command(char *out, size_t size)
{
  FILE *comm = fopen("/proc/self/comm", "re");

  copy(out, size, "");
  if (!comm) {
    return;
  }
  if (fgets(out, (int)size, comm)) {
    out[strcspn(out, "\n")] = '\0';
  }
  fclose(comm);
}

/* The number that all files of this process have. A forked child draws another one. */
static uint64_t process_number(void)
{
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static pid_t owner;
  static uint64_t number;
  uint64_t result;

  pthread_mutex_lock(&lock);
  if (owner != getpid() && getrandom(&number, sizeof(number), 0) == (ssize_t)sizeof(number)) {
    owner = getpid();
  }
  result = owner == getpid() ? number : 0;
  pthread_mutex_unlock(&lock);
  return result;
}

static void write_table(struct harp_stat_counter *table)
{
  for (unsigned i = 0; i < HARP_COUNTERS; i++) {
    copy(table[i].name, sizeof(table[i].name), harp_counter_info[i].name);
    table[i].kind = harp_counter_info[i].kind;
  }
}

static void write_header(struct harp_stat_header *header, const struct layout *at,
                         const struct harp_stat_identity *identity)
{
  struct timespec now;

  clock_gettime(CLOCK_REALTIME, &now);
  header->version = HARP_STAT_VERSION;
  header->header_size = sizeof(*header);
  header->file_size = at->size;
  header->start_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
  header->pid = (uint32_t)getpid();
  header->uid = (uint32_t)geteuid();
  header->instances = identity->instances;
  header->counters = HARP_COUNTERS;
  header->counter_table = (uint32_t)at->table;
  header->counter_size = sizeof(struct harp_stat_counter);
  header->instance_offset = at->instances;
  header->instance_stride = at->stride;
  header->flow_offset = at->flows;
  header->flow_size = sizeof(struct harp_stat_flow);
  header->flows = HARP_STAT_FLOWS;
  copy(header->release, sizeof(header->release), HARP_VERSION);
  gethostname(header->host, sizeof(header->host) - 1);
  write_command(header->command, sizeof(header->command));
  copy(header->device, sizeof(header->device), identity->device);
  copy(header->address, sizeof(header->address), identity->address);
  copy(header->config, sizeof(header->config), identity->config);
  copy(header->about, sizeof(header->about), identity->about);
  header->rank = identity->rank;
  copy(header->gpu, sizeof(header->gpu), identity->gpu);
  header->process = process_number();
  header->world_size = (uint32_t)identity->world_size;
  copy(header->job, sizeof(header->job), identity->job);
  memcpy(header->magic, HARP_STAT_MAGIC, sizeof(header->magic));
}

int harp_statfile_open(struct harp_statfile *file, const struct harp_stat_identity *identity)
{
  struct layout at = lay_out(identity->instances);
  int rc = map_somewhere(file, at.size);

  if (rc) {
    return rc;
  }
  file->size = at.size;
  write_table((struct harp_stat_counter *)((char *)file->map + at.table));
  write_header(file->map, &at, identity);
  /* Readers open only *.stat, so the file gets that name when it is complete. */
  if (file->path[0]) {
    harp_rundir_publish(file->path, ".stat");
  }
  return 0;
}

void harp_statfile_close(struct harp_statfile *file)
{
  if (file->path[0]) {
    unlink(file->path);
  }
  munmap(file->map, file->size);
  if (file->fd >= 0) {
    close(file->fd);
  }
  *file = (struct harp_statfile){.fd = -1};
}

void harp_statfile_forget(struct harp_statfile *file)
{
  if (file->fd < 0) {
    return;
  }
  /* A flock lasts as long as a descriptor or mapping of its open file. Anonymous memory replaces
   * the mapping, so the child also cannot write to the parent's counters. */
  mmap(file->map, file->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
       0);
  close(file->fd);
  file->fd = -1;
  file->path[0] = '\0';
}

uint64_t *harp_statfile_counters(const struct harp_statfile *file, unsigned instance)
{
  const struct harp_stat_header *header = file->map;

  return (uint64_t *)((char *)file->map + header->instance_offset +
                      instance * header->instance_stride);
}

struct harp_stat_flow *harp_statfile_flow(const struct harp_statfile *file, unsigned index)
{
  const struct harp_stat_header *header = file->map;

  return (struct harp_stat_flow *)((char *)file->map + header->flow_offset) + index;
}

void harp_statfile_flow_write(struct harp_stat_flow *entry, const struct harp_stat_flow *values)
{
  uint32_t generation = entry->generation;
  size_t head = sizeof(entry->generation);

  __atomic_store_n(&entry->generation, generation + 1, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  memcpy((char *)entry + head, (const char *)values + head, sizeof(*entry) - head);
  __atomic_store_n(&entry->generation, generation + 2, __ATOMIC_RELEASE);
}
