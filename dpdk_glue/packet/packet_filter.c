/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/packet/packet_filter.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <sys/socket.h>

enum {
  TYPE_IPV4 = 0x0800,
  TYPE_ARP = 0x0806,
  PROTOCOL_ICMP = 1,
  PROTOCOL_TCP = 6,
  ICMP_UNREACHABLE = 3,
  VLAN_ID = 0xfff,
  FRAGMENT_OFFSET = 0x1fff,
  /* From the frame's first byte. */
  MAC_HIGH = 0,
  MAC_LOW = 4,
  TYPE = 12,
  IP = 14,
  IP_FRAGMENT = IP + 6,
  IP_PROTOCOL = IP + 9,
  IP_DESTINATION = IP + 16,
  /* Loads of a frame's fields at these offsets plus the IPv4 header's length. */
  TCP_DESTINATION = IP + 2,
  ICMP_TYPE = IP,
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

/* Goes on if A is value, else drops. Jumps reach 255 instructions at most, so
 * every test carries its own verdict. */
static void require(struct program *program, uint32_t value)
{
  emit(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 1, 0));
  emit(program, (struct sock_filter)DROP);
}

static void pass_if(struct program *program, uint32_t value)
{
  emit(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1));
  emit(program, (struct sock_filter)PASS);
}

/* The kernel has taken a VLAN tag out of the frame and keeps it aside: such a
 * frame belongs to another interface. Tag 0 says priority only. */
static void require_untagged(struct program *program)
{
  load(program, BPF_W, SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT);
  emit(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 4, 0));
  load(program, BPF_W, SKF_AD_OFF + SKF_AD_VLAN_TAG);
  emit(program, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, VLAN_ID));
  require(program, 0);
}

static void require_destination(struct program *program, const struct packet_filter *filter)
{
  const uint8_t *mac = filter->mac;
  load(program, BPF_W, MAC_HIGH);
  require(program,
          (uint32_t)mac[0] << 24 | (uint32_t)mac[1] << 16 | (uint32_t)mac[2] << 8 | mac[3]);
  load(program, BPF_H, MAC_LOW);
  require(program, (uint32_t)mac[4] << 8 | mac[5]);
  load(program, BPF_W, IP_DESTINATION);
  require(program, ntohl(filter->address));
}

/* A is the protocol and not TCP's. Of a shared address only the unreachable
 * messages are HARP's business (each process sees all: the stack looks whose). */
static void judge_other_protocols(struct program *program, const struct packet_filter *filter)
{
  if (!filter->shared) {
    emit(program, (struct sock_filter)PASS);
    return;
  }
  require(program, PROTOCOL_ICMP);
  emit(program, (struct sock_filter)BPF_STMT(BPF_LDX | BPF_B | BPF_MSH, IP));
  emit(program, (struct sock_filter)BPF_STMT(BPF_LD | BPF_B | BPF_IND, ICMP_TYPE));
  require(program, ICMP_UNREACHABLE);
  emit(program, (struct sock_filter)PASS);
}

static void judge_ports(struct program *program, const struct packet_filter *filter)
{
  emit(program, (struct sock_filter)BPF_STMT(BPF_LDX | BPF_B | BPF_MSH, IP));
  emit(program, (struct sock_filter)BPF_STMT(BPF_LD | BPF_H | BPF_IND, TCP_DESTINATION));
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
  /* Where the port decides, a fragment that has none is nobody's. */
  load(program, BPF_H, IP_FRAGMENT);
  emit(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, FRAGMENT_OFFSET, 0, 1));
  emit(program, (struct sock_filter)DROP);
  load(program, BPF_B, IP_PROTOCOL);
  unsigned short branch = program->length;
  emit(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PROTOCOL_TCP, 0, 0));
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
  load(&program, BPF_H, TYPE);
  if (kind == PACKET_FILTER_ALL)
    pass_if(&program, TYPE_ARP);
  if (kind == PACKET_FILTER_ARP) {
    require(&program, TYPE_ARP);
    emit(&program, (struct sock_filter)PASS);
  } else {
    require(&program, TYPE_IPV4);
    judge_ipv4(&program, filter);
  }
  return attach(fd, SOL_SOCKET, SO_ATTACH_FILTER, program.code, program.length);
}

/* Loads are relative to the network header: what the program sees begins there
 * for arriving frames and with the link header for a sibling's outgoing ones.
 * An unreachable message follows the flow that it quotes; what else there is
 * goes to the first queue. */
int harp_packet_fanout_steer(int fd)
{
  enum { NET = SKF_NET_OFF, QUOTED_SOURCE = NET + 8 + 20 };
  static const struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, (uint32_t)NET + 9),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PROTOCOL_TCP, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PROTOCOL_ICMP, 4, 0),
      BPF_STMT(BPF_RET | BPF_K, 0),
      BPF_STMT(BPF_LDX | BPF_B | BPF_MSH, (uint32_t)NET),
      BPF_STMT(BPF_LD | BPF_H | BPF_IND, (uint32_t)NET + 2),
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
