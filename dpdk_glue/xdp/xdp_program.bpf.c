/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The XDP program. It gives a frame to HARP's AF_XDP socket of the queue on which the frame arrived
 * if the frame is an unfragmented TCP segment for HARP's MAC address, IPv4 address and a local port
 * that HARP holds. It passes every other frame to the kernel, also one with IPv4 options, which no
 * host of HARP sends: an offset that varies would need CAP_PERFMON.
 *
 * clang compiles it for the BPF machine, and xdp_program.py makes the C file xdp_program_code.c of
 * the result. The three maps are symbols without a definition; xdp_steering.c puts their
 * descriptors in.
 */
#include <linux/bpf.h>

#include "dpdk_glue/xdp/xdp_program.h"
#include "harp/headers.h"

enum { NO_OPTIONS = 4 << 4 | IP_HEADER / 4 /* first byte of the IPv4 header */ };

static void *(*const map_lookup)(const void *map,
                                 const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*const redirect_map)(const void *map, __u64 key,
                                  __u64 otherwise) = (void *)BPF_FUNC_redirect_map;

extern const char xdp_ports, xdp_settings, xdp_sockets;

/* Loads a word that has any alignment but that of bytes: headers are two bytes off. */
static __u16 word(const __u8 *at) { return *(const __u16 *)at; }

static __u16 big_endian(__u16 value) { return __builtin_bswap16(value); }

static int is_ours(const __u8 *frame, const struct xdp_settings *settings)
{
  const __u8 *ip = frame + ETH_HEADER;
  return word(frame + ETH_TYPE) == big_endian(ETH_TYPE_IPV4) &&
         word(frame + ETH_DST) == settings->mac[0] &&
         word(frame + ETH_DST + 2) == settings->mac[1] &&
         word(frame + ETH_DST + 4) == settings->mac[2] &&
         word(ip + IP_DST) == settings->address[0] &&
         word(ip + IP_DST + 2) == settings->address[1] && ip[IP_PROTOCOL] == IP_PROTOCOL_TCP &&
         !(word(ip + IP_FRAGMENT) & big_endian(IP_FRAGMENT_MASK)) && ip[0] == NO_OPTIONS;
}

__attribute__((section("xdp"), used)) int harp_xdp(struct xdp_md *context)
{
  const __u8 *frame = (const __u8 *)(long)context->data;
  const __u8 *end = (const __u8 *)(long)context->data_end;
  const __u32 only = 0;
  const struct xdp_settings *settings = map_lookup(&xdp_settings, &only);
  const __u8 *tcp = frame + ETH_HEADER + IP_HEADER;
  if (!settings || tcp + TCP_HEADER > end || !is_ours(frame, settings)) {
    return XDP_PASS;
  }
  __u32 port = big_endian(word(tcp + TCP_DEST));
  __u32 number = port / XDP_PORTS_PER_WORD;
  const __u64 *held = map_lookup(&xdp_ports, &number);
  if (!held || !(*held >> port % XDP_PORTS_PER_WORD & 1)) {
    return XDP_PASS;
  }
  /* XDP_PASS if the queue has no socket. */
  return (int)redirect_map(&xdp_sockets, context->rx_queue_index, XDP_PASS);
}
