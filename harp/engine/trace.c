/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "harp/engine/trace.h"

struct ring_copy {
  struct harp_trace_record *records, *start; /* start: the oldest valid record */
  uint64_t count;
};

struct harp_trace_copy {
  struct harp_trace_file header;
  struct ring_copy rings[]; /* header.instances */
};

const struct harp_trace_info harp_trace_info[HARP_TRACE_EVENTS] = {
#define HARP_TRACE_EVENT(name, a, b, doc) {#name, a, b, doc},
#include "harp/engine/trace_events.def"
#undef HARP_TRACE_EVENT
};

int harp_trace_create(struct harp_trace *trace, size_t entries)
{
  if (entries == 0 || (entries & (entries - 1)) != 0) {
    return -EINVAL;
  }
  trace->records = calloc(entries, sizeof(*trace->records));
  trace->mask = entries - 1;
  trace->head = 0;
  return trace->records ? 0 : -ENOMEM;
}

void harp_trace_destroy(struct harp_trace *trace)
{
  free(trace->records);
  trace->records = NULL;
}

/* Copies the ring, oldest record first, without the records that the poller overwrote during the
 * copy. Returns the number of records; *start: the first of them. */
static uint64_t snapshot(const struct harp_trace *trace, struct harp_trace_record *out,
                         struct harp_trace_record **start)
{
  uint64_t entries = trace->mask + 1;
  uint64_t head = __atomic_load_n(&trace->head, __ATOMIC_ACQUIRE);
  uint64_t first = head > entries ? head - entries : 0;
  uint64_t after, lost = 0;

  for (uint64_t i = first; i < head; i++) {
    const struct harp_trace_record *record = &trace->records[i & trace->mask];
    out[i - first].when = __atomic_load_n(&record->when, __ATOMIC_RELAXED);
    out[i - first].what = __atomic_load_n(&record->what, __ATOMIC_RELAXED);
  }
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  after = __atomic_load_n(&trace->head, __ATOMIC_RELAXED);
  /* The poller may be writing the record after the last published one. */
  if (after + 1 > first + entries) {
    lost = after + 1 - entries - first;
  }
  if (lost > head - first) {
    lost = head - first;
  }
  *start = out + lost;
  return head - first - lost;
}

static void write_header(struct harp_trace_file *header, unsigned instances, const char *device,
                         const char *reason, uint64_t now_ns)
{
  struct timespec now;

  memset(header, 0, sizeof(*header));
  clock_gettime(CLOCK_REALTIME, &now);
  memcpy(header->magic, HARP_TRACE_MAGIC, sizeof(header->magic));
  header->version = HARP_TRACE_VERSION;
  header->header_size = sizeof(*header);
  header->event_size = sizeof(struct harp_trace_file_event);
  header->events = HARP_TRACE_EVENTS;
  header->instances = instances;
  header->pid = (uint32_t)getpid();
  header->now_ns = now_ns;
  header->realtime_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
  snprintf(header->release, sizeof(header->release), "%s", HARP_VERSION);
  gethostname(header->host, sizeof(header->host) - 1);
  snprintf(header->reason, sizeof(header->reason), "%s", reason);
  snprintf(header->device, sizeof(header->device), "%s", device);
}

static void write_events(FILE *file)
{
  for (unsigned i = 0; i < HARP_TRACE_EVENTS; i++) {
    struct harp_trace_file_event event = {{0}, {0}, {0}};

    snprintf(event.name, sizeof(event.name), "%s", harp_trace_info[i].name);
    snprintf(event.a, sizeof(event.a), "%s", harp_trace_info[i].a);
    snprintf(event.b, sizeof(event.b), "%s", harp_trace_info[i].b);
    fwrite(&event, sizeof(event), 1, file);
  }
}

static void write_ring(FILE *file, const struct ring_copy *ring)
{
  fwrite(&ring->count, sizeof(ring->count), 1, file);
  fwrite(ring->start, sizeof(*ring->start), ring->count, file);
}

static int create(char path[HARP_RUN_PATH_SIZE])
{
  char fallback[64];
  int fd = harp_rundir_create(harp_rundir_configured(), 1, path);

  if (fd >= 0) {
    return fd;
  }
  if (harp_rundir_fallback(fallback, sizeof(fallback)) < 0) {
    return fd;
  }
  return harp_rundir_create(fallback, 1, path);
}

static int write_all(FILE *file, const struct harp_trace_copy *copy)
{
  fwrite(&copy->header, sizeof(copy->header), 1, file);
  write_events(file);
  for (unsigned i = 0; i < copy->header.instances; i++) {
    write_ring(file, &copy->rings[i]);
  }
  return fflush(file) != 0 || ferror(file) ? -EIO : 0;
}

int harp_trace_take(struct harp_trace_copy **out, const struct harp_trace *const *traces,
                    unsigned count, const char *device, const char *reason, uint64_t now_ns)
{
  static unsigned taken;
  struct harp_trace_copy *copy;

  *out = NULL;
  if (__atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED) >= HARP_TRACE_DUMPS) {
    return -EDQUOT;
  }
  copy = calloc(1, sizeof(*copy) + count * sizeof(copy->rings[0]));
  if (!copy) {
    return -ENOMEM;
  }
  write_header(&copy->header, count, device, reason, now_ns);
  for (unsigned i = 0; i < count; i++) {
    struct ring_copy *ring = &copy->rings[i];

    ring->records = malloc((traces[i]->mask + 1) * sizeof(*ring->records));
    if (!ring->records) {
      harp_trace_copy_free(copy);
      return -ENOMEM;
    }
    ring->count = snapshot(traces[i], ring->records, &ring->start);
  }
  *out = copy;
  return 0;
}

const char *harp_trace_copy_device(const struct harp_trace_copy *copy)
{
  return copy->header.device;
}

void harp_trace_copy_free(struct harp_trace_copy *copy)
{
  for (unsigned i = 0; i < copy->header.instances; i++) {
    free(copy->rings[i].records);
  }
  free(copy);
}

int harp_trace_write(const struct harp_trace_copy *copy, char path[HARP_RUN_PATH_SIZE])
{
  FILE *file;
  int fd = create(path), rc;

  if (fd < 0) {
    return fd;
  }
  file = fdopen(fd, "w");
  if (!file) {
    rc = -errno;
    close(fd);
  } else {
    rc = write_all(file, copy);
    fclose(file);
  }
  if (rc == 0) {
    rc = harp_rundir_publish(path, ".trace");
  }
  if (rc) {
    unlink(path);
  }
  return rc;
}
