/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A HARP process without threads: the real plugin and engine instances, with ports whose wire
 * belongs to the owner. The owner is an input of the link fuzzer, which keeps all of this in its
 * arena, or the wire between two such processes (tests/model). The owner controls time and random
 * numbers.
 *
 * The queues of all NICs have one sequence of numbers: NIC * setup->instances + instance.
 */
#ifndef HARP_TESTS_FUZZ_HOST_H
#define HARP_TESTS_FUZZ_HOST_H

#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "plugin/link/link.h"
#include "tests/fuzz/fuzz.h"

enum {
  HOST_NICS = 2,      /* at most, all in one subnet */
  HOST_INSTANCES = 2, /* of a NIC, at most */
  HOST_QUEUES = HOST_NICS * HOST_INSTANCES,
  HOST_FRAMES = 32, /* most frames that wait in a queue */
  HOST_PORTS = 128, /* local ports of a NIC, by instance in turn; few, so that they are reused */
  HOST_TIMEOUT_MS = 1000,
};
#define HOST_ADDRESS 0x0200090au /* 10.9.0.2, network order */
#define HOST_PEER 0x0100090au    /* 10.9.0.1 */
/* The address of a NIC; address: the first one's. */
#define HOST_NIC_ADDRESS(address, nic) ((address) + 0x10000000u * (nic))

/* The parameters of host_create. */
struct host_setup {
  uint32_t address;   /* of the first NIC, network order */
  unsigned nics;      /* 0: one. The first one is home; another one starts at its first use */
  unsigned instances; /* of each NIC */
  bool stripe;        /* links are spread over the NICs */
  uint32_t flows;     /* per link */
  uint32_t timeout_ms;
  uint32_t offloads;                         /* HARP_OFFLOAD_* */
  bool callers_poll;                         /* the caller of test polls */
  uint32_t max_connections, packets, rcvbuf; /* per stack */
};

struct host_frame {
  uint32_t length, header_length; /* bytes; the payload follows the headers */
  uint16_t segment_size;          /* merged segments: payload bytes of each; 0: a single segment */
  bool checksum_good;             /* the device has verified the checksum */
  bool scattered;                 /* the payload goes where the engine expects the next one */
  uint8_t bytes[];
};

struct host {
  const struct host_setup *setup;
  void *context;  /* of the plugin's communicator */
  uint64_t now;   /* ns */
  uint64_t drawn; /* count of random numbers */
  struct transport *transport;
  void (*on_transmit)(unsigned queue, const struct harp_tx_frame *frame);
  uint32_t refuses;     /* frames that the devices reject for lack of room */
  unsigned ports_taken; /* local ports of all NICs */
  struct host_nic {
    uint64_t down_until, unplugged_until; /* ns: ends of a failure, and of a time without carrier */
    bool ports[HOST_PORTS];               /* taken local ports */
  } nics[HOST_NICS];
  struct host_queue {
    struct host_frame *waiting[HOST_FRAMES], *given[HOST_FRAMES];
    unsigned waiting_count, given_count;
  } queues[HOST_QUEUES];
};

/* Calls net_init at time now. on_transmit: called for every sent frame. */
struct host *host_create(const struct host_setup *setup, uint64_t now,
                         void (*on_transmit)(unsigned queue, const struct harp_tx_frame *frame));
/* Call it after net_finalize. */
void host_destroy(void);
/* Polls every instance once. */
void host_poll(void);
/* Advances to the next deadline of an instance, at most `most` ns, and polls. */
void host_advance(uint64_t most);
/* Same, for a process that waits only for its stacks' timers and its used ports. */
void host_rest(void);
/* A thread that waits in a loop sleeps until something is due, at least `least` ns. So the loop is
 * short. No instance polls meanwhile. */
void host_sleep(uint64_t least);
/* Puts a frame on its way to a queue; the caller fills in its bytes. NULL: the queue is full. */
struct host_frame *host_frame(unsigned queue, uint32_t header_length, uint32_t payload_length);
/* NULL: its NIC has not started. */
struct harp_instance *host_instance(unsigned queue);
struct harp_stack *host_stack(unsigned queue);

#endif
