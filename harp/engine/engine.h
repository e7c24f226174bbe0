/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine drives one NIC of a process: it opens the port, and runs one instance per queue. nics.h
 * has the engines of all of a process's NICs.
 *
 * Thread: the caller serializes open, start and close; the other functions may be called by any
 * thread.
 */
#ifndef HARP_ENGINE_ENGINE_H
#define HARP_ENGINE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "dpdk_glue/port.h"
#include "harp/engine/config.h"
#include "harp/engine/instance.h"
#include "harp/engine/poll_threads.h"
#include "harp/engine/region.h"
#include "harp/engine/statfile.h"

enum {
  HARP_ENGINE_INSTANCES = 8,      /* a handle has as many port fields */
  HARP_ENGINE_CONNECTIONS = 4096, /* per instance */
  HARP_ENGINE_ERROR_SIZE = 512,
};

struct harp_engine {
  struct harp_config config;
  struct harp_port *port;
  struct harp_statfile statfile;
  struct harp_poll_threads threads;
  unsigned instance_count;
  struct harp_instance *instances[HARP_ENGINE_INSTANCES];
  struct harp_regions regions;
  pthread_mutex_t ports_lock;
  _Atomic(uint8_t) port_owner[65536]; /* instance + 1 that owns a local port; 0: none */
  bool forgotten;                     /* in a forked child: the engine must not be used */
};

/*
 * Opens the device of a NIC. The configuration has a number of instances. The engine then has its
 * address, and sockets that were opened with the present privileges of the process. It takes no
 * frame yet, and has no instance, no thread and no packet memory. guest: it leaves to other
 * processes what only one can have of the device (port.h). 0, or a negative errno and one line in
 * error (HARP_ENGINE_ERROR_SIZE bytes) that says what is wrong, where, and how to fix it.
 */
int harp_engine_open(struct harp_engine **engine, const struct harp_config *config, bool guest,
                     char *error);
/* Allocates memory, starts the workers and the port. May block, up to half a second for an address
 * of HARP's own. The caller closes the engine after an error. Errors: as above. */
int harp_engine_start(struct harp_engine *engine, char *error);
/* Stops the workers and frees everything. No thread may use the engine, its instances or flows. */
void harp_engine_close(struct harp_engine *engine);

/* on_link: whether the address (network order) is in the NIC's own subnet. reaches: whether it is
 * in the subnet, or the NIC has a gateway. Any thread, after open. */
bool harp_engine_on_link(const struct harp_engine *engine, uint32_t address);
bool harp_engine_reaches(const struct harp_engine *engine, uint32_t address);

/* Whether the NIC's link is up, as far as the port knows. Costs a system call. Any thread, after
 * start. */
bool harp_engine_link_up(const struct harp_engine *engine);

/* Reserves a local TCP port (host order) whose packets arrive at the instance; wanted 0: any port.
 * 0, or a negative errno of the port, such as -EADDRINUSE. Waits some seconds for an agent that
 * restarts, so not under a poll lock. -ETIMEDOUT: it does not answer. */
int harp_engine_reserve(struct harp_engine *engine, unsigned instance, uint16_t wanted,
                        uint16_t *port);
/* The same, and waits for an agent for a second at most. */
int harp_engine_try_reserve(struct harp_engine *engine, unsigned instance, uint16_t wanted,
                            uint16_t *port);
void harp_engine_release(struct harp_engine *engine, unsigned instance, uint16_t port);

/* Starts writing the traces of all instances to a file (dump.h). A process writes at most
 * HARP_TRACE_DUMPS files. */
void harp_engine_dump(struct harp_engine *engine, const char *reason);

/* At exit: removes the engine's files from the run folder, and frees nothing. */
void harp_engine_unpublish(const struct harp_engine *engine);

/* In a forked child: releases the child's copies of descriptors and mappings. The parent's engine
 * continues. */
void harp_engine_forget(struct harp_engine *engine);

#endif
