/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages between a process with HARP and the node's agent (`harp agent`), over a UNIX socket
 * of type SOCK_SEQPACKET: one packet a message.
 *
 * A request is a JSON object of at most HARP_AGENT_REQUEST bytes; harp/agent/request.py describes
 * its members. A reply is struct harp_agent_reply with descriptors in SCM_RIGHTS. Releases may
 * differ on both sides: new members go to the end, a shorter reply has zeros there, and a longer
 * one is cut.
 */
#ifndef HARP_DPDK_GLUE_AGENT_MESSAGE_H
#define HARP_DPDK_GLUE_AGENT_MESSAGE_H

#include <stdint.h>

enum {
  HARP_AGENT_VERSION = 1,
  HARP_AGENT_MAGIC = 0x48415250, /* "HARP" */
  HARP_AGENT_REQUEST = 1024,     /* most bytes of a request */
  HARP_AGENT_DESCRIPTORS = 80,   /* most descriptors of a reply */
  HARP_AGENT_OTHERS = 16,
};

/* Integers have the host's byte order, because both sides are on one host. Addresses have the
 * network's. */
struct harp_agent_reply {
  uint32_t magic;
  uint16_t version;     /* of the agent */
  uint16_t descriptors; /* in this message */
  int32_t result;       /* 0, or a negative errno; then error says why */
  char error[512];
  /* --- Of "open": the interface (struct harp_netdev) --- */
  int32_t index;
  uint32_t mtu, gso_max, speed_mbps;
  uint32_t address, gateway;
  uint8_t prefix, mac[6], state; /* state: 1 up, 2 carrier, 4 TSO */
  char pci_path[256];
  /* The local ports that the process may hold; 0, 0: all, on an address of its own. */
  uint16_t ports_first, ports_last;
  /* --- Of "listen": the first port that is held --- */
  uint16_t port;
  uint16_t reserved;
  /* --- Of "open" for packet: struct packet_sockets --- */
  int32_t receive_buffer;
  uint32_t queue_count;
  uint32_t other_count;
  int32_t others[HARP_AGENT_OTHERS];
  /* --- Of "open" for xdp, with queue_count: struct xdp_port --- */
  uint32_t chunk, rx_chunks, tx_chunks; /* of the sockets' memory (struct xdp_umem) */
  uint8_t zero_copy, several, native, reserved_xdp;
};

#endif
