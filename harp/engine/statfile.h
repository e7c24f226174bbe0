/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process publishes about itself: a mapped file that readers (harp stat,
 * harp top, an exporter) copy without disturbing it.
 *
 *   header | counter table | page: instance 0's counters | page: instance 1's |
 *   ... | page: flows
 *
 * Every offset, size and name stands in the file, so that a reader of another
 * release understands it. Integers are the host's. The owner holds an exclusive
 * flock while it lives; a file that can be locked is a dead process's, and the
 * next process to start removes it.
 *
 * If no file can be made (no folder, no space), the counters live in plain
 * memory, one warning says so, and the job runs.
 */
#ifndef HARP_ENGINE_STATFILE_H
#define HARP_ENGINE_STATFILE_H

#include <stdint.h>

#include "harp/counters.h"
#include "harp/engine/rundir.h"

enum {
  HARP_STAT_VERSION = 1,
  HARP_STAT_FLOWS = 512, /* entries of the flow table; later flows are not shown */
};

#define HARP_STAT_MAGIC "HARPSTAT"

struct harp_stat_header {
  char magic[8]; /* HARP_STAT_MAGIC, written last */
  uint32_t version;
  uint32_t header_size;
  uint64_t file_size;
  uint64_t start_ns; /* CLOCK_REALTIME */
  uint32_t pid;      /* as the process itself sees it: many are 1, in containers */
  uint32_t uid;      /* for readers of old; others ask who owns the file */
  uint32_t instances;
  uint32_t counters;        /* 64-bit words of an instance */
  uint32_t counter_table;   /* offset of struct harp_stat_counter[counters] */
  uint32_t counter_size;    /* sizeof(struct harp_stat_counter) */
  uint64_t instance_offset; /* of instance 0's words */
  uint64_t instance_stride;
  uint64_t flow_offset; /* of struct harp_stat_flow[flows] */
  uint32_t flow_size;   /* sizeof(struct harp_stat_flow) */
  uint32_t flows;
  char release[32];
  char host[64];
  char command[64]; /* the process's name */
  char device[256];
  char address[32]; /* "10.0.3.7/24" */
  char config[512]; /* path of the ztcp*.conf */
  char about[256];  /* offloads and the like, one clause */
  /* What follows is there if header_size says so. */
  int32_t rank; /* in the job; -1: unknown */
  char gpu[20]; /* PCI id; "": unknown */
};

struct harp_stat_counter {
  char name[60];
  uint32_t kind; /* enum harp_counter_kind */
};

/*
 * One TCP flow of a link. The poller of its instance writes, about once in
 * 100 ms; generation is odd meanwhile, and a reader copies until it read the
 * same even generation before and after.
 */
struct harp_stat_flow {
  uint32_t generation;
  uint32_t state; /* Linux's TCP_ESTABLISHED ...; 0: the entry is free */
  uint32_t link;
  uint16_t flow; /* number within the link */
  uint8_t instance;
  uint8_t direction;      /* 'S': sends messages, 'R': receives them, 0: neither yet */
  uint32_t local_address; /* network order, as the peer's */
  uint32_t peer_address;
  uint16_t local_port; /* host order */
  uint16_t peer_port;
  uint32_t mss;            /* bytes */
  uint32_t cwnd;           /* bytes */
  uint32_t ssthresh;       /* bytes */
  uint32_t send_window;    /* bytes, as the peer advertised */
  uint32_t receive_window; /* bytes, as we advertised */
  uint32_t in_flight;      /* bytes sent and not acknowledged */
  uint32_t srtt_us;
  uint32_t rttvar_us;
  uint32_t min_rtt_us;
  uint32_t rto_us;
  uint32_t retransmits; /* segments */
  uint64_t bytes_in;    /* payload, in order */
  uint64_t bytes_out;   /* payload, acknowledged */
  uint64_t opened_ns;   /* CLOCK_REALTIME */
  uint32_t reserved[8]; /* zero */
};

_Static_assert(sizeof(struct harp_stat_flow) == 128, "readers rely on the layout");
_Static_assert(sizeof(struct harp_stat_counter) == 64, "readers rely on the layout");

/* What the process says of itself; strings are copied and may be cut off. */
struct harp_stat_identity {
  unsigned instances;
  const char *device;
  const char *address;
  const char *config;
  const char *about;
  int rank;        /* -1: unknown */
  const char *gpu; /* "": unknown */
};

struct harp_statfile {
  int fd; /* -1: plain memory, nobody can read it */
  void *map;
  size_t size;
  char path[HARP_RUN_PATH_SIZE]; /* "": plain memory */
};

/*
 * Sweeps the folder, makes the file and takes its lock. 0; -ENOMEM if not even
 * plain memory is left. A fallback is told through harp_log_post, once.
 * Thread: one that may block on the file system.
 */
int harp_statfile_open(struct harp_statfile *file, const struct harp_stat_identity *identity);

/* Unmaps and removes. The counters must not be touched afterwards. */
void harp_statfile_close(struct harp_statfile *file);

/* In a forked child: drops its part in the parent's lock. The counters are then
 * zeroed memory of the child's own; close frees it. */
void harp_statfile_forget(struct harp_statfile *file);

/* HARP_COUNTERS words, page-aligned, zero at the start; instance is below
 * identity.instances. Only that instance's poller writes them. */
uint64_t *harp_statfile_counters(const struct harp_statfile *file, unsigned instance);

/* Entry of the flow table; index is below HARP_STAT_FLOWS. */
struct harp_stat_flow *harp_statfile_flow(const struct harp_statfile *file, unsigned index);

/* Publishes values in an entry; values->generation is not looked at. A zeroed
 * struct frees the entry. */
void harp_statfile_flow_write(struct harp_stat_flow *entry, const struct harp_stat_flow *values);

#endif
