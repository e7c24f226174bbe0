/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process publishes its statistics in mapped files, one for each NIC that it uses. Readers (harp
 * stat, harp top, an exporter) copy them without delaying the process.
 *
 *   header | counter table | page: instance 0's counters | page: instance 1's |
 *   ... | page: flows
 *
 * The file contains every offset, size and name, so that readers of other releases understand it.
 * Integers have the host's byte order. The owner holds an exclusive flock while it lives. A file
 * that can be locked belongs to a dead process, and the next process that starts removes it.
 *
 * The file has no path if no folder takes it: it is then in memory, and root of the host finds it
 * among the process's descriptors. The counters are in plain memory if that fails, too. HARP logs
 * one warning, and the job runs.
 */
#ifndef HARP_ENGINE_STATFILE_H
#define HARP_ENGINE_STATFILE_H

#include <stdint.h>

#include "harp/counters.h"
#include "harp/engine/rundir.h"

enum {
  HARP_STAT_VERSION = 1,
  HARP_STAT_FLOWS = 512, /* entries of the flow table; further flows are not shown */
  HARP_STAT_TIMES = 24,  /* buckets of a flow's histogram of message times */
};

#define HARP_STAT_MAGIC "HARPSTAT"

struct harp_stat_header {
  char magic[8]; /* HARP_STAT_MAGIC, written last */
  uint32_t version;
  uint32_t header_size;
  uint64_t file_size;
  uint64_t start_ns; /* CLOCK_REALTIME, when the file was made */
  uint32_t pid;      /* in the process's own PID namespace; often 1 in a container */
  uint32_t uid;      /* for old readers; new ones use the file's owner */
  uint32_t instances;
  uint32_t counters;        /* 64-bit words of an instance */
  uint32_t counter_table;   /* offset of struct harp_stat_counter[counters] */
  uint32_t counter_size;    /* sizeof(struct harp_stat_counter) */
  uint64_t instance_offset; /* of instance 0's counters */
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
  char about[256];  /* the port's summary, such as its offloads */
  /* The next fields exist if header_size includes them. */
  int32_t rank;        /* in the job; -1: unknown */
  char gpu[20];        /* PCI id; "": unknown */
  uint64_t process;    /* random; equal in the files of all NICs of a process; 0: unknown */
  uint32_t world_size; /* ranks of the job; 0: unknown */
  char job[124];       /* name of the job; "": unknown */
};

struct harp_stat_counter {
  char name[60];
  uint32_t kind; /* enum harp_counter_kind */
};

/*
 * One TCP flow of a link. The poller of its instance writes it about every 100 ms. generation is
 * odd during a write. A reader copies the entry again until it reads the same even generation
 * before and after the copy.
 */
struct harp_stat_flow {
  uint32_t generation;
  uint32_t state; /* as in Linux, such as TCP_ESTABLISHED; 0: the entry is free */
  uint32_t link;
  uint16_t flow; /* number within the link */
  uint8_t instance;
  uint8_t direction;      /* 'S': sends messages, 'R': receives them, 0: no link */
  uint32_t local_address; /* network order */
  uint32_t peer_address;
  uint16_t local_port; /* host order */
  uint16_t peer_port;
  uint32_t mss;            /* bytes */
  uint32_t cwnd;           /* bytes */
  uint32_t ssthresh;       /* bytes */
  uint32_t send_window;    /* bytes, advertised by the peer */
  uint32_t receive_window; /* bytes, advertised by this process */
  uint32_t in_flight;      /* bytes (RFC 6675's pipe): without those SACKed or taken for lost */
  uint32_t srtt_us;
  uint32_t rttvar_us;
  uint32_t min_rtt_us;
  uint32_t rto_us;
  uint32_t retransmits; /* retransmissions, up to 64 KiB each */
  uint64_t bytes_in;    /* payload received in order */
  uint64_t bytes_out;   /* payload sent and acknowledged */
  uint64_t opened_ns;   /* CLOCK_REALTIME */
  /* How long the flow has waited so far. Sending: for acknowledgements of data in flight, for the
   * peer's window, for room in the device's queue. Receiving: for a receive to be posted. */
  uint32_t ack_wait_ms;
  uint32_t window_wait_ms;
  uint32_t device_wait_ms;
  uint32_t receive_wait_ms;
  uint64_t message_time_ns; /* sum of the times in the histogram */
  uint32_t reserved[2];     /* zero */
  /* Messages that this flow completed, by the time from their post (isend, irecv) to the poll that
   * completed them. Bucket i has the times below 2^(10 + i) ns that no earlier one has; the last
   * has all longer ones. Only newer files have it: see flow_size. */
  uint32_t message_times[HARP_STAT_TIMES];
};

_Static_assert(sizeof(struct harp_stat_flow) == 224, "readers rely on the layout");
_Static_assert(sizeof(struct harp_stat_counter) == 64, "readers rely on the layout");

/* The process's description for the header; strings are copied and may be truncated. */
struct harp_stat_identity {
  unsigned instances;
  const char *device;
  const char *address;
  const char *config;
  const char *about;
  int rank;        /* -1: unknown */
  const char *gpu; /* "": unknown */
  int world_size;  /* 0: unknown */
  const char *job; /* "": unknown */
};

struct harp_statfile {
  int fd; /* -1: plain memory, which no reader can see */
  void *map;
  size_t size;
  char path[HARP_RUN_PATH_SIZE]; /* "": no path, or plain memory */
};

/*
 * Creates and locks the file, and sweeps its folder. The next choices are the fallback folder, a
 * file without a path and plain memory, with one warning in the log. 0, or -ENOMEM. May block on
 * the file system.
 */
int harp_statfile_open(struct harp_statfile *file, const struct harp_stat_identity *identity);

/* Unmaps and removes the file. The counters must not be used afterwards. */
void harp_statfile_close(struct harp_statfile *file);

/* In a forked child: releases the child's references to the parent's lock. The counters become
 * zeroed memory of the child, which close frees. */
void harp_statfile_forget(struct harp_statfile *file);

/* An instance's HARP_COUNTERS words, page-aligned and initially zero. instance must be less than
 * identity.instances. Only that instance's poller writes them, except those of
 * harp_instance_count_shared. */
uint64_t *harp_statfile_counters(const struct harp_statfile *file, unsigned instance);

/* An entry of the flow table; index must be less than HARP_STAT_FLOWS. */
struct harp_stat_flow *harp_statfile_flow(const struct harp_statfile *file, unsigned index);

/* The bucket of a message's time. */
static inline unsigned harp_stat_bucket(uint64_t ns)
{
  unsigned bits = ns >> 10 ? 64 - (unsigned)__builtin_clzll(ns >> 10) : 0;
  return bits < HARP_STAT_TIMES ? bits : HARP_STAT_TIMES - 1;
}

/* Writes values to an entry; values->generation is ignored. A zeroed struct frees the entry.
 * Thread: the flow's poller. */
void harp_statfile_flow_write(struct harp_stat_flow *entry, const struct harp_stat_flow *values);

#endif
