/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A port moves frames between the stack and a device, with one queue per instance. It knows frames
 * and offloads. It does not know TCP connections.
 *
 * Threads: open, start, close, forget, reserve and release may run on any thread, one call at a
 * time per port. The poller of a queue, which holds its poll lock, calls receive, transmit, flush,
 * reclaim, count and arm(true) for that queue. The queue's worker calls descriptor and arm(false)
 * without the poll lock. Another thread may poll meanwhile, so these two write only atomic words.
 * Any thread may call has_carrier. Different queues run at the same time and share no written data.
 *
 * Errors: the calls return a negative errno. open and start also write one line that says what is
 * wrong, where, and how to fix it.
 */
#ifndef HARP_DPDK_GLUE_PORT_H
#define HARP_DPDK_GLUE_PORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "harp/frame.h"

enum { HARP_PORT_ERROR_SIZE = 512 };

struct harp_port_config {
  const char *device; /* the part after the scheme: "eth0", "/dev/shm/w0" */
  uint16_t queues;    /* number of queues, one per polling instance */
  uint32_t address;   /* network order; 0: share the interface's address (packet and xdp) */
  uint8_t prefix;     /* bits; used with address */
  uint32_t gateway;   /* network order; 0: the gateway of the interface's default route */
  uint16_t mtu;       /* 0: the device's */
  uint8_t mac[6];     /* zero: the device's */
  uint16_t ports_first, ports_last; /* local ports to use; 0, 0: the kernel grants them */
  uint32_t hugepages;               /* MiB of hugepages (dpdk); 0: use them if enough are free */
  bool guest;        /* take nothing of the device that only one process can have (xdp) */
  const char *agent; /* socket of the node's agent, which opens the device (packet and xdp) */
};

struct harp_port_info {
  uint8_t mac[6];
  uint16_t mtu;           /* largest IPv4 packet in one wire frame, bytes */
  uint32_t speed_mbps;    /* 0: unknown */
  uint32_t offloads;      /* HARP_OFFLOAD_*, in both directions */
  uint32_t receive_depth; /* bytes that the device buffers before it drops; 0: no such bound */
  uint32_t max_frame;     /* largest frame that transmit accepts with segment_size set, bytes */
  uint32_t address;       /* network order; also set when the port shares the kernel's address */
  uint8_t prefix;
  uint32_t gateway;     /* network order; 0: none */
  uint32_t local_ports; /* of the agent's block, which the process may hold; 0: no such bound */
  bool shares_address;  /* the kernel owns the address: it answers ARP, HARP only sends requests */
  bool point_to_point;  /* one peer and no network behind it: no address conflict is possible */
  char pci_path[256];   /* the NIC's folder in sysfs; "" for a virtual device */
  char summary[160];    /* one clause for the log: device, address, offloads */
};

/*
 * A guess of where the payload of the next frames belongs:
 *
 *   stream:  | length bytes -> payload | gap bytes -> nowhere | next_length bytes -> next |
 *
 * Frame i of a burst begins at byte i * stride of this stream, if its headers have header_length
 * bytes. A port may write any payload to both buffers. The frame tells where its payload really
 * is, and the reader of the stream moves misplaced payload.
 *
 * A port should end a burst with the frame that reaches the end of `payload`. It should end it
 * after one frame if both buffers are NULL. The next hint then is better.
 */
struct harp_rx_hint {
  uint16_t header_length;
  uint8_t *payload;   /* NULL: no guess */
  size_t length;      /* bytes that the port may write there; 0 without payload */
  size_t stride;      /* payload bytes expected in each frame */
  size_t gap;         /* bytes between the two buffers; used only with next */
  uint8_t *next;      /* NULL: no guess */
  size_t next_length; /* bytes that the port may write there */
};

struct harp_port;

struct harp_port_ops {
  const char *scheme; /* "packet" of "packet:eth0" */
  int (*open)(struct harp_port **port, const struct harp_port_config *config, char *error);
  /* Begins to receive. Between open and start the port has its descriptors and privileges, and
   * reserve works, but no frame reaches it. NULL: open starts the port. */
  int (*start)(struct harp_port *port, char *error);
  void (*close)(struct harp_port *port);
  /* For a forked child, which does not use its copy of the port. Closes and unmaps everything
   * that would keep the device, the address or local ports occupied after the parent exits.
   * Changes nothing for the parent. */
  void (*forget)(struct harp_port *port);
  /* Stores up to max frames in frames and returns their number. They stay valid until the next
   * receive on this queue. 0: no frame is waiting. -ENETDOWN: the link is down. -ENODEV: the
   * device is gone. -EADDRNOTAVAIL: it no longer has the port's MAC or IP address. */
  int (*receive)(struct harp_port *port, unsigned queue, const struct harp_rx_hint *hint,
                 struct harp_rx_frame *frames, int max);
  /* Sends one frame. The caller may reuse the frame's memory when the call returns, but memory that
   * a dma_map covers only after reclaim. -EAGAIN: the queue is full, retry after a poll.
   * Other errors: -EMSGSIZE, -EIO, and those of receive. */
  int (*transmit)(struct harp_port *port, unsigned queue, const struct harp_tx_frame *frame);
  /* Ends a burst: the port must now send all frames that it still holds back. */
  void (*flush)(struct harp_port *port, unsigned queue);
  /* A descriptor that polls readable when frames may be waiting; -1: none. */
  int (*descriptor)(struct harp_port *port, unsigned queue);
  /* asleep = true: the poller is about to wait on the descriptor, and an arriving frame must
   * make it readable. Returns 1 if frames are already waiting (the poller must not sleep), else
   * 0. asleep = false: the poller is back. */
  int (*arm)(struct harp_port *port, unsigned queue, bool asleep);
  /* Takes a local TCP port for this queue. Neither the kernel nor another process uses it or
   * answers for it while it is taken. wanted 0: any port that the device delivers to this queue.
   * local: host order. -EADDRINUSE: no port is free; -EADDRNOTAVAIL: wanted is not possible;
   * -ETIMEDOUT: the node's agent has not answered within a second, try again. */
  int (*reserve)(struct harp_port *port, unsigned queue, uint16_t wanted, uint16_t *local);
  void (*release)(struct harp_port *port, unsigned queue, uint16_t local);
  /* Memory registration, in whole pages; ranges may overlap. Any thread may call these, one call
   * at a time.
   * dma_map lets transmit refer to the application's memory. 0 (also if the device cannot reach
   * the memory; transmit then copies), or -ENOMEM.
   * dma_revoke allows no new references. The poller of every queue then calls reclaim.
   * dma_unmap_deferred then removes the device's mappings.
   * All three are NULL in a port that always copies. */
  int (*dma_map)(struct harp_port *port, uintptr_t start, uintptr_t end);
  void (*dma_revoke)(struct harp_port *port, uintptr_t start, uintptr_t end);
  void (*dma_unmap_deferred)(struct harp_port *port);
  /* Waits, at most timeout_us microseconds, until the device no longer reads the application's
   * memory on behalf of this queue. 0, or -ETIMEDOUT. */
  int (*reclaim)(struct harp_port *port, unsigned queue, uint32_t timeout_us);
  /* Tells whether the device has a carrier; AF_PACKET sockets report no error for a pulled
   * cable. Costs a system call. NULL: receive reports the link state. Any thread. */
  bool (*has_carrier)(struct harp_port *port);
  /* Adds this queue's counts since the last call to counters[enum harp_counter]. */
  void (*count)(struct harp_port *port, unsigned queue, uint64_t *counters);
};

/* First member of every port. */
struct harp_port {
  const struct harp_port_ops *ops;
  struct harp_port_info info;
};

/* Tells whether the device has a carrier, as far as the port can tell. Any thread. */
static inline bool harp_port_has_carrier(struct harp_port *port)
{
  return !port->ops->has_carrier || port->ops->has_carrier(port);
}

/* Opens "SCHEME:REST". -EPROTONOSUPPORT: unknown scheme; error then lists the known ones. */
int harp_port_open(struct harp_port **port, const char *device,
                   const struct harp_port_config *config, char *error);
/* Begins to receive; once, after open. */
int harp_port_start(struct harp_port *port, char *error);
void harp_port_close(struct harp_port *port);

extern const struct harp_port_ops harp_port_packet; /* AF_PACKET on an interface */
extern const struct harp_port_ops harp_port_xdp;    /* AF_XDP on an interface */
/* a NIC or a software device that DPDK drives */
extern const struct harp_port_ops harp_port_dpdk;
extern const struct harp_port_ops harp_port_wire;  /* two processes over shared memory */
extern const struct harp_port_ops harp_port_fault; /* impairs another port */

#endif
