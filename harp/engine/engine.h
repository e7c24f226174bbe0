/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine: what one process has of HARP. It claims a ztcp*.conf, opens the
 * port, and runs an instance per queue.
 *
 * Thread: open and close are the caller's to serialize; the rest is for any.
 */
#ifndef HARP_ENGINE_ENGINE_H
#define HARP_ENGINE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "dpdk_glue/port.h"
#include "harp/engine/claim.h"
#include "harp/engine/instance.h"
#include "harp/engine/region.h"
#include "harp/engine/statfile.h"

enum {
  HARP_ENGINE_INSTANCES = 8,      /* what a handle has room to name */
  HARP_ENGINE_CONNECTIONS = 4096, /* of each */
  HARP_ENGINE_ERROR_SIZE = 512,
};

struct harp_engine {
  struct harp_config config;
  struct harp_claim claim; /* fd -1: opened with a configuration of the caller's */
  struct harp_port *port;
  struct harp_statfile statfile;
  unsigned instance_count;
  struct harp_instance *instances[HARP_ENGINE_INSTANCES];
  struct harp_regions regions;
  pthread_mutex_t ports_lock;
  _Atomic(uint8_t) port_owner[65536]; /* instance + 1 that has a local port; 0: none */
  bool forgotten;                     /* a forked child: nothing here may be touched */
};

/*
 * Does everything that can fail, so that NCCL can still fall back: claim,
 * device, memory. Workers sleep until there is work. 0, or a negative errno and
 * one line in error (HARP_ENGINE_ERROR_SIZE bytes) that says what, where, and
 * how to mend it.
 */
int harp_engine_open(struct harp_engine **engine, char *error);
/* The same with a configuration instead of a claim. */
int harp_engine_open_config(struct harp_engine **engine, const struct harp_config *config,
                            char *error);
/* Nobody may use the engine, its instances or flows any more. */
void harp_engine_close(struct harp_engine *engine);

/* A local TCP port whose packets arrive at the instance; wanted 0: any. */
int harp_engine_reserve(struct harp_engine *engine, unsigned instance, uint16_t wanted,
                        uint16_t *port);
void harp_engine_release(struct harp_engine *engine, unsigned instance, uint16_t port);

/* Begins to write the traces of all instances out (dump.h), once per reason that
 * goes wrong; a process leaves a few files at most. */
void harp_engine_dump(struct harp_engine *engine, const char *reason);

/* In a forked child: leaves the parent's engine alone. */
void harp_engine_forget(struct harp_engine *engine);

#endif
