/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process of the model: the plugin and a host of tests/fuzz/host.h in a shared object, with its
 * own registry. The build makes two copies of the object, so that two processes fit into one.
 */
#ifndef HARP_TESTS_MODEL_PROCESS_H
#define HARP_TESTS_MODEL_PROCESS_H

#include "tests/fuzz/host.h"

/* The callbacks of a process. */
struct process_calls {
  void (*on_transmit)(unsigned queue, const struct harp_tx_frame *frame);
  void (*sleeps)(uint64_t ns);
  void (*says)(bool warning, const char *line);
  void (*preempts)(void); /* another instance may poll now, as by a thread of its own */
  void (*starts)(void);   /* a thread is to run: the owner calls process_api.run_thread */
};

struct process_api {
  /* Calls net_init. seed starts the random numbers. */
  struct host *(*create)(const struct host_setup *setup, uint64_t now, uint64_t seed,
                         const struct process_calls *calls);
  /* finalize calls net_finalize, which waits for the last bytes. destroy then calls
   * host_destroy. */
  void (*finalize)(void);
  void (*destroy)(void);
  /* Runs the thread that the process has started, if it has not run yet. */
  void (*run_thread)(void);
  struct harp_instance *(*instance)(unsigned queue); /* NULL: its NIC has not started */
  void (*poll)(unsigned queue);
  uint64_t (*deadline)(unsigned queue);      /* ns: of the instance, */
  uint64_t (*rest_deadline)(unsigned queue); /* of its stack's timers only */
  struct host_frame *(*frame)(unsigned queue, uint32_t header_length, uint32_t payload_length);
  /* Returns NULL, or the name of objects that remain without links and listeners. */
  const char *(*in_use)(void);
  /* Returns the number of allocated blocks that were not freed. */
  long (*blocks)(void);
  struct harp_endpoint (*peer)(const struct harp_tcp *tcp);
  uint16_t (*local_port)(const struct harp_tcp *tcp);

  int (*listen)(int device, void *handle, struct net_listener **listener);
  int (*connect)(int device, void *handle, struct net_link **link);
  int (*accept)(struct net_listener *listener, struct net_link **link);
  int (*isend)(struct net_link *link, const void *data, size_t size, struct net_region *region,
               struct net_request **request);
  int (*irecv)(struct net_link *link, void *data, size_t capacity, struct net_region *region,
               enum net_completion completion, struct net_request **request);
  int (*test)(struct net_request *request, int *done, size_t *size);
  int (*close)(struct net_link *link);
  int (*close_listener)(struct net_listener *listener);
};

/* Exported by each of the two objects. */
extern const struct process_api harp_model_process;

#endif
