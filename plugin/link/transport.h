/* SPDX-License-Identifier: Apache-2.0 */
/* The process-wide state of HARP between the first init and the last finalize. */
#ifndef HARP_PLUGIN_TRANSPORT_H
#define HARP_PLUGIN_TRANSPORT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "harp/engine/nics.h"
#include "plugin/link/aborts.h"
#include "plugin/link/early_read.h"
#include "plugin/link/proof.h"

struct net_link;
struct transport_nic;

struct transport {
  struct harp_nics nics;
  struct transport_nic *of_device[HARP_DEVICES_MAX]; /* NULL: not driven by this process */
  struct transport_nic *home;
  char names[HARP_DEVICES_MAX][16]; /* of the devices, for NCCL */
  pthread_mutex_t lock;             /* links and their regions; never taken under a poll lock */
  pthread_mutex_t start_lock;       /* the start of NICs */
  pthread_mutex_t parts_lock; /* parts of links, and receiving; no other lock is taken under it */
  atomic_int trace_wanted;    /* enum trace_request; a trace is written once */
  char trace_reason[200];
  bool checksum;        /* HARP_CHECKSUM=1: chunks that we send carry a trailer */
  struct proof_key key; /* HARP_KEY_FILE */
  struct aborts aborts;
  struct early_read early_read;
  _Atomic(uint64_t) drained_in_vain_ns; /* that closing links have waited without success */
  atomic_bool warned_of_mtu;  /* the MTU warning was logged; it is logged once per process */
  struct net_link *links;     /* open, or being connected (link->connect) */
  struct net_link *receiving; /* links that have flows from a peer; under parts_lock */
  unsigned driven;            /* NICs that this process has opened */
  atomic_bool starting;       /* starter runs, or has run */
  pthread_t starter;          /* starts the NICs that flows need besides their own */
  atomic_bool starter_joined;
};

/* The open transport, or NULL with *error set (-ENODEV: no init; -EPERM: in a forked child). */
struct transport *transport_get(int *error);
/* Whether this is a forked child: HARP's state must not be touched there. */
bool transport_forked(void);
/* Does what pollers may not do: writes queued log lines with NCCL's logger, and starts writing the
 * trace that the first failure requested. Thread: one of NCCL's. */
void transport_serve(void);
/* Requests that the trace is written, with this reason. Only the first request counts. Any
 * thread. */
void transport_request_trace(struct transport *transport, const char *reason);
/* Starts all NICs that this process drives. Service thread. */
void transport_start_nics(struct transport *transport);
/* The same without waiting, once: a flow may need another NIC than its own. Any thread. */
void transport_want_nics(struct transport *transport);
/* Add a link to the list of open links, or remove it. Service thread. */
void transport_add_link(struct transport *transport, struct net_link *link);
void transport_remove_link(struct transport *transport, struct net_link *link);

#endif
