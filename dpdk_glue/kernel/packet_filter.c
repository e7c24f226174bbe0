/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/kernel/packet_filter.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <sys/socket.h>

#include "harp/headers.h"

enum {
  VLAN_ID = 0xfff,
  MAC_HIGH = ETH_DST, /* the first four bytes, and the last two */
  MAC_LOW = ETH_DST + 4,
};

#define PASS BPF_STMT(BPF_RET | BPF_K, UINT32_MAX)
#define DROP BPF_STMT(BPF_RET | BPF_K, 0)

struct program {
  struct sock_filter code[PACKET_FILTER_CODE];
  unsigned short length;
};

static void emit(struct program *program, struct sock_filter instruction)
{
  program->code[program->length++] = instruction;
}

static void load(struct program *program, uint16_t size, uint32_t at)
{
  emit(program, (struct sock_filter)BPF_STMT(BPF_LD | size | BPF_ABS, at));
}

/* Continues if register A equals value, else drops. BPF jumps reach at most 255 instructions, so
 * every test has its own DROP. */
static void require(struct program *program, uint32_t value)
{
  emit(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 1, 0));
  emit(program, (struct sock_filter)DROP);
}

/* Skips `count` instructions if register A equals value. */
static void jump_if(struct program *program, uint32_t value, unsigned count)
{
  emit(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, (uint8_t)count, 0));
}

static void pass_if(struct program *program, uint32_t value)
{
  emit(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1));
  emit(program, (struct sock_filter)PASS);
}

/* The kernel moves a VLAN tag out of the frame into metadata. A tagged frame belongs to another
 * interface. VLAN ID 0 carries only a priority. */
static void require_untagged(struct program *program)
{
  load(program, BPF_W, SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT);
  emit(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 4, 0));
  load(program, BPF_W, SKF_AD_OFF + SKF_AD_VLAN_TAG);
  emit(program, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, VLAN_ID));
  require(program, 0);
}

static void require_mac(struct program *program, const uint8_t *mac)
{
  load(program, BPF_W, MAC_HIGH);
  require(program,
          (uint32_t)mac[0] << 24 | (uint32_t)mac[1] << 16 | (uint32_t)mac[2] << 8 | mac[3]);
  load(program, BPF_H, MAC_LOW);
  require(program, (uint32_t)mac[4] << 8 | mac[5]);
}

/* The socket receives from all interfaces. A frame on our own interface must have our MAC. Frames
 * from other processes of this host have it, too. A frame on one of the other interfaces must have
 * arrived there. The others all have an address, because a frame that a bond or a bridge passes up
 * is also seen on its members. */
static void require_interface_or_mac(struct program *program, const struct packet_filter *filter)
{
  enum { MAC_CODE = 6 };
  unsigned others = filter->other_count;
  load(program, BPF_W, SKF_AD_OFF + SKF_AD_IFINDEX);
  jump_if(program, (uint32_t)filter->ifindex, others + 5);
  for (unsigned i = 0; i < others; i++) {
    jump_if(program, (uint32_t)filter->others[i], others - i);
  }
  emit(program, (struct sock_filter)DROP);
  load(program, BPF_W, SKF_AD_OFF + SKF_AD_PKTTYPE);
  require(program, PACKET_HOST);
  emit(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JA, MAC_CODE, 0, 0));
  require_mac(program, filter->mac);
}

static void require_destination(struct program *program, const struct packet_filter *filter)
{
  if (filter->other_count > 0) {
    require_interface_or_mac(program, filter);
  } else {
    require_mac(program, filter->mac);
  }
  load(program, BPF_W, ETH_HEADER + IP_DST);
  require(program, ntohl(filter->address));
}

/* Register A holds the IPv4 protocol, and it is not TCP. On a shared address HARP needs only
 * ICMP unreachable messages. Every process receives all of them, and its stack ignores those for
 * other connections. */
static void judge_other_protocols(struct program *program, const struct packet_filter *filter)
{
  if (!filter->shared) {
    emit(program, (struct sock_filter)PASS);
    return;
  }
  require(program, IP_PROTOCOL_ICMP);
  emit(program, (struct sock_filter)BPF_STMT(BPF_LDX | BPF_B | BPF_MSH, ETH_HEADER));
  emit(program, (struct sock_filter)BPF_STMT(BPF_LD | BPF_B | BPF_IND, ETH_HEADER + ICMP_TYPE));
  require(program, ICMP_UNREACHABLE);
  emit(program, (struct sock_filter)PASS);
}

static void judge_ports(struct program *program, const struct packet_filter *filter)
{
  emit(program, (struct sock_filter)BPF_STMT(BPF_LDX | BPF_B | BPF_MSH, ETH_HEADER));
  emit(program, (struct sock_filter)BPF_STMT(BPF_LD | BPF_H | BPF_IND, ETH_HEADER + TCP_DEST));
  for (unsigned i = 0; i < filter->range_count; i++) {
    const struct packet_range *range = &filter->ranges[i];
    emit(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, range->first, 0, 2));
    emit(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, range->last, 1, 0));
    emit(program, (struct sock_filter)PASS);
  }
  emit(program, (struct sock_filter)DROP);
}

static void judge_ipv4(struct program *program, const struct packet_filter *filter)
{
  require_destination(program, filter);
  if (!filter->ranges) {
    emit(program, (struct sock_filter)PASS);
    return;
  }
  /* A later fragment has no port, so the program drops it where ports decide. */
  load(program, BPF_H, ETH_HEADER + IP_FRAGMENT);
  emit(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, IP_OFFSET_MASK, 0, 1));
  emit(program, (struct sock_filter)DROP);
  load(program, BPF_B, ETH_HEADER + IP_PROTOCOL);
  unsigned short branch = program->length;
  emit(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IP_PROTOCOL_TCP, 0, 0));
  judge_other_protocols(program, filter);
  program->code[branch].jt = (uint8_t)(program->length - branch - 1);
  judge_ports(program, filter);
}

static int attach(int fd, int level, int option, const struct sock_filter *code, size_t length)
{
  struct sock_fprog program = {.len = (unsigned short)length,
                               .filter = (struct sock_filter *)(uintptr_t)code};
  return setsockopt(fd, level, option, &program, sizeof(program)) < 0 ? -errno : 0;
}

int harp_packet_filter_attach(int fd, const struct packet_filter *filter,
                              enum packet_filter_kind kind)
{
  struct program program = {.length = 0};
  require_untagged(&program);
  load(&program, BPF_H, ETH_TYPE);
  if (kind == PACKET_FILTER_ALL) {
    pass_if(&program, ETH_TYPE_ARP);
  }
  if (kind == PACKET_FILTER_ARP) {
    require(&program, ETH_TYPE_ARP);
    emit(&program, (struct sock_filter)PASS);
  } else {
    require(&program, ETH_TYPE_IPV4);
    judge_ipv4(&program, filter);
  }
  return attach(fd, SOL_SOCKET, SO_ATTACH_FILTER, program.code, program.length);
}

/* The loads are relative to the network header. The program's data begins there for received
 * frames, but at the link header for frames that a process on the same host sends. An ICMP
 * unreachable message goes to the queue of the flow that it quotes. All other frames go to queue
 * 0. */
int harp_packet_fanout_steer(int fd)
{
  enum { NET = SKF_NET_OFF, QUOTED_SOURCE = NET + ICMP_HEADER + IP_HEADER + TCP_SOURCE };
  static const struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, (uint32_t)NET + IP_PROTOCOL),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IP_PROTOCOL_TCP, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IP_PROTOCOL_ICMP, 4, 0),
      BPF_STMT(BPF_RET | BPF_K, 0),
      BPF_STMT(BPF_LDX | BPF_B | BPF_MSH, (uint32_t)NET),
      BPF_STMT(BPF_LD | BPF_H | BPF_IND, (uint32_t)NET + TCP_DEST),
      BPF_STMT(BPF_RET | BPF_A, 0),
      BPF_STMT(BPF_LDX | BPF_B | BPF_MSH, (uint32_t)NET),
      BPF_STMT(BPF_LD | BPF_H | BPF_IND, (uint32_t)QUOTED_SOURCE),
      BPF_STMT(BPF_RET | BPF_A, 0),
  };
  return attach(fd, SOL_PACKET, PACKET_FANOUT_DATA, code, sizeof(code) / sizeof(code[0]));
}

int harp_packet_filter_deafen(int fd)
{
  static const struct sock_filter code[] = {DROP};
  return attach(fd, SOL_SOCKET, SO_ATTACH_FILTER, code, 1);
}
