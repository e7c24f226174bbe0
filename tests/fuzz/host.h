/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A HARP process without threads: the plugin and the engine's instances as they are,
 * around a port whose wire is its owner's: an input of the link fuzzer, which has all of
 * this in its arena, or the wire between two such processes (tests/model). Time passes,
 * and random numbers are drawn, as the owner says.
 */
#ifndef HARP_TESTS_FUZZ_HOST_H
#define HARP_TESTS_FUZZ_HOST_H

#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "plugin/link/link.h"
#include "tests/fuzz/fuzz.h"

enum {
  HOST_INSTANCES = 2, /* at most */
  HOST_FRAMES = 32,   /* that wait in a queue */
  HOST_PORTS = 128,   /* local ones, by instance in turn; few, so that used ones come again */
  HOST_TIMEOUT_MS = 1000,
};
#define HOST_ADDRESS 0x0200090au /* 10.9.0.2, network order */
#define HOST_PEER 0x0100090au    /* 10.9.0.1 */

/* What host_create makes. */
struct host_setup {
  uint32_t address; /* network order */
  unsigned instances;
  uint32_t flows; /* of a link */
  uint32_t timeout_ms;
  uint32_t offloads;                         /* HARP_OFFLOAD_* */
  bool scarce;                               /* whoever calls test polls */
  uint32_t max_connections, packets, rcvbuf; /* of each stack */
};

struct host_frame {
  uint32_t length, header_length; /* bytes; the payload follows the headers */
  uint16_t segment_size;          /* merged segments: payload bytes of each; 0: a single one */
  bool checksum_good;             /* the device vouches for it */
  bool scattered;                 /* its payload goes where the engine expects the next one */
  uint8_t bytes[];
};

struct host {
  const struct host_setup *setup;
  void *context;  /* of its communicator */
  uint64_t now;   /* ns */
  uint64_t drawn; /* random numbers */
  struct transport *transport;
  void (*hears)(unsigned queue, const struct harp_tx_frame *frame);
  uint32_t refuses;       /* frames that the device has no room for */
  bool ports[HOST_PORTS]; /* that are taken, */
  unsigned ports_taken;   /* and how many these are */
  struct host_queue {
    struct host_frame *waiting[HOST_FRAMES], *given[HOST_FRAMES];
    unsigned waiting_count, given_count;
  } queues[HOST_INSTANCES];
};

/* net_init, at time now. hears: every frame that goes out. */
struct host *host_create(const struct host_setup *setup, uint64_t now,
                         void (*hears)(unsigned queue, const struct harp_tx_frame *frame));
/* After net_finalize. */
void host_destroy(void);
/* All instances, once each. */
void host_poll(void);
/* To the time when an instance has something to do, at most so many ns on, and polls. */
void host_advance(uint64_t most);
/* The same where nothing but the stacks' timers, and used ports, is waited for. */
void host_rest(void);
/* A frame of headers and payload is on its way to a queue; NULL: none can be, now. The caller
 * fills in its bytes. */
struct host_frame *host_frame(unsigned queue, uint32_t header_length, uint32_t payload_length);
struct harp_instance *host_instance(unsigned queue);
struct harp_stack *host_stack(unsigned queue);

#endif
