/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A port moves frames between the stack and a device, one queue per instance.
 * It knows frames and offloads; it does not know TCP connections.
 *
 * Threads: open, close, forget, reserve and release may come from any thread, one at a
 * time per port. receive, transmit, flush, arm and reclaim of one queue come
 * from that queue's poller only; different queues run at the same time and
 * share nothing that is written.
 * Errors: negative errno; open also writes one line that says what is wrong,
 * where, and how to mend it.
 */
#ifndef HARP_DPDK_GLUE_PORT_H
#define HARP_DPDK_GLUE_PORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "harp/frame.h"

enum { HARP_PORT_ERROR_SIZE = 512 };

struct harp_port_config {
  const char *device; /* what follows the scheme: "eth0", "/dev/shm/w0", a fault's spec */
  uint16_t queues;    /* how many instances will poll */
  uint32_t address;   /* network order; 0: share the interface's own (packet) */
  uint8_t prefix;     /* bits; with address */
  uint32_t gateway;   /* network order; 0: the device's own idea of it */
  uint16_t mtu;       /* 0: the device's */
  uint8_t mac[6];     /* zero: the device's */
  uint16_t ports_first, ports_last; /* local ports to take; 0, 0: what the kernel grants */
  uint32_t hugepages;               /* MiB to take in hugepages (dpdk); 0: what there is, or none */
};

struct harp_port_info {
  uint8_t mac[6];
  uint16_t mtu;           /* largest IPv4 packet of one wire frame, bytes */
  uint32_t speed_mbps;    /* 0: unknown */
  uint32_t offloads;      /* HARP_OFFLOAD_*: what this port does, both ways */
  uint32_t receive_depth; /* bytes that wait for us before the device drops; 0: no such bound */
  uint32_t max_frame;     /* largest frame that transmit takes with segment_size set, bytes */
  uint32_t address;       /* network order: the one in use, also when it is the kernel's */
  uint8_t prefix;
  uint32_t gateway;    /* network order; 0: none */
  bool shares_address; /* the kernel owns the address: it answers ARP, HARP only asks */
  bool point_to_point; /* one peer, and no network behind it: nobody else can have the address */
  char pci_path[256];  /* the NIC's folder in sysfs; "": a virtual device */
  char summary[160];   /* one clause for the log: device, offloads, address */
};

/*
 * Where the payload of the next frames is expected to go: frame i of a burst,
 * if its headers take header_length bytes, at payload + i * stride. A port may
 * place payload there, may scribble on the stretch, and must report the truth
 * in the frame; the stack moves what was guessed wrong.
 */
struct harp_rx_hint {
  uint16_t header_length;
  uint8_t *payload; /* NULL: no guess */
  size_t length;    /* bytes that may be written there */
  size_t stride;    /* payload bytes expected in each frame */
};

struct harp_port;

struct harp_port_ops {
  const char *scheme; /* "packet" of "packet:eth0" */
  int (*open)(struct harp_port **port, const struct harp_port_config *config, char *error);
  void (*close)(struct harp_port *port);
  /* In a forked child, whose copy of the port nobody uses any more: lets go of
   * what would keep the device, the address or local ports from others when
   * the parent has gone. Closes and unmaps, and changes nothing for the parent. */
  void (*forget)(struct harp_port *port);
  /* Up to max frames, valid until the next receive on this queue. Returns how
   * many; 0: none waits. -ENETDOWN, -ENODEV: the device is gone or down. */
  int (*receive)(struct harp_port *port, unsigned queue, const struct harp_rx_hint *hint,
                 struct harp_rx_frame *frames, int max);
  /* One frame; its memory is free to change when this returns, or (ports that
   * send from foreign memory) when reclaim says so. -EAGAIN: the queue is
   * full, try after a poll; -EMSGSIZE, -ENETDOWN, -EIO. */
  int (*transmit)(struct harp_port *port, unsigned queue, const struct harp_tx_frame *frame);
  /* The burst is complete: what is still held back must go out now. */
  void (*flush)(struct harp_port *port, unsigned queue);
  /* A descriptor that polls readable when frames may wait; -1: none. */
  int (*descriptor)(struct harp_port *port, unsigned queue);
  /* asleep: the poller is about to wait on the descriptor; afterwards a frame
   * that arrives makes it readable. Returns 1 if frames wait already (do not
   * sleep), else 0. asleep = false: the poller is back. */
  int (*arm)(struct harp_port *port, unsigned queue, bool asleep);
  /* Takes a local TCP port for this queue and keeps everyone else (the kernel,
   * other processes) from using or answering for it. wanted 0: any whose
   * packets arrive on this queue. local: host order. -EADDRINUSE. */
  int (*reserve)(struct harp_port *port, unsigned queue, uint16_t wanted, uint16_t *local);
  void (*release)(struct harp_port *port, unsigned queue, uint16_t local);
  /* Memory of the application's that transmit may refer to from here on, whole
   * pages; ranges may overlap. From any thread, one call at a time. revoke:
   * no new references; then the poller of every queue calls reclaim; then
   * settle takes back what kept the memory in the device's reach. NULL, all
   * three: the port never refers. 0 (also where the device cannot reach the
   * memory and it will be copied), -ENOMEM. */
  int (*dma_map)(struct harp_port *port, uintptr_t start, uintptr_t end);
  void (*dma_revoke)(struct harp_port *port, uintptr_t start, uintptr_t end);
  void (*dma_unmap_deferred)(struct harp_port *port);
  /* Waits, at most timeout_us, until the device reads no foreign memory of
   * this queue any more. 0, or -ETIMEDOUT. */
  int (*reclaim)(struct harp_port *port, unsigned queue, uint32_t timeout_us);
  /* Whether the device has a carrier now: a pulled cable is no error to the kernel's sockets. Costs
   * a system call. NULL: receive tells all there is to know. Under any queue's poller. */
  bool (*has_carrier)(struct harp_port *port);
  /* Adds this queue's counts since the last call to counters[enum harp_counter]. */
  void (*count)(struct harp_port *port, unsigned queue, uint64_t *counters);
};

/* First member of every port. */
struct harp_port {
  const struct harp_port_ops *ops;
  struct harp_port_info info;
};

/* "SCHEME:REST". -EPROTONOSUPPORT: unknown scheme (error names those there are). */
int harp_port_open(struct harp_port **port, const char *device,
                   const struct harp_port_config *config, char *error);
void harp_port_close(struct harp_port *port);

extern const struct harp_port_ops harp_port_packet; /* AF_PACKET on an interface */
extern const struct harp_port_ops harp_port_dpdk;   /* a NIC, or whatever DPDK drives */
extern const struct harp_port_ops harp_port_wire;   /* two processes, shared memory */
extern const struct harp_port_ops harp_port_fault;  /* impairs any other */

#endif
