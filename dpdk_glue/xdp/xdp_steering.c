/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/xdp/xdp_steering.h"

#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "dpdk_glue/descriptor.h"
#include "dpdk_glue/fail.h"
#include "dpdk_glue/xdp/xdp_program.h"

enum { LOG_BYTES = 65536 };

/* Newer than Debian 12's headers are allowed to be. */
#ifndef BPF_F_XDP_HAS_FRAGS
#define BPF_F_XDP_HAS_FRAGS (1U << 5)
#endif

#define MAP_BYTES (XDP_PORT_WORDS * sizeof(uint64_t))

static int bpf(enum bpf_cmd command, union bpf_attr *attributes)
{
  long rc = syscall(SYS_bpf, command, attributes, sizeof(*attributes));
  return rc < 0 ? -errno : (int)rc;
}

/* The descriptor of a new map with keys from 0 on, or a negative errno. */
static int make_map(enum bpf_map_type type, uint32_t value_size, uint32_t entries, uint32_t flags)
{
  union bpf_attr attributes = {
      .map_type = type,
      .key_size = sizeof(uint32_t),
      .value_size = value_size,
      .max_entries = entries,
      .map_flags = flags,
  };
  memcpy(attributes.map_name, "harp", sizeof("harp"));
  return bpf(BPF_MAP_CREATE, &attributes);
}

static int update(int map, uint32_t key, const void *value)
{
  union bpf_attr attributes = {
      .map_fd = (uint32_t)map,
      .key = (uint64_t)(uintptr_t)&key,
      .value = (uint64_t)(uintptr_t)value,
  };
  return bpf(BPF_MAP_UPDATE_ELEM, &attributes);
}

static int make_maps(struct xdp_steering *steering, uint32_t address, const uint8_t *mac,
                     unsigned sockets)
{
  struct xdp_settings settings = {0};
  memcpy(settings.address, &address, sizeof(settings.address));
  memcpy(settings.mac, mac, sizeof(settings.mac));
  steering->ports = make_map(BPF_MAP_TYPE_ARRAY, sizeof(uint64_t), XDP_PORT_WORDS, BPF_F_MMAPABLE);
  if (steering->ports < 0) {
    return steering->ports;
  }
  steering->settings = make_map(BPF_MAP_TYPE_ARRAY, sizeof(settings), 1, 0);
  if (steering->settings < 0) {
    return steering->settings;
  }
  steering->sockets = make_map(BPF_MAP_TYPE_XSKMAP, sizeof(int), sockets, 0);
  if (steering->sockets < 0) {
    return steering->sockets;
  }
  void *held = mmap(NULL, MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, steering->ports, 0);
  if (held == MAP_FAILED) {
    return -errno;
  }
  steering->held = held;
  return update(steering->settings, 0, &settings);
}

static int load(struct xdp_steering *steering, uint32_t flags, char *log)
{
  const int maps[] = {steering->ports, steering->settings, steering->sockets};
  struct xdp_program program = harp_xdp_program;
  for (unsigned i = 0; i < program.maps; i++) {
    struct bpf_insn load_map;
    memcpy(&load_map, &program.code[program.map[i].instruction], sizeof(load_map));
    load_map.src_reg = BPF_PSEUDO_MAP_FD;
    load_map.imm = maps[program.map[i].map];
    memcpy(&program.code[program.map[i].instruction], &load_map, sizeof(load_map));
  }
  union bpf_attr attributes = {
      .prog_type = BPF_PROG_TYPE_XDP,
      .expected_attach_type = BPF_XDP,
      .insns = (uint64_t)(uintptr_t)program.code,
      .insn_cnt = program.words,
      .license = (uint64_t)(uintptr_t)"Apache-2.0",
      .prog_flags = flags,
      .log_buf = (uint64_t)(uintptr_t)log,
      .log_size = log ? LOG_BYTES : 0,
      .log_level = log ? 1 : 0,
  };
  memcpy(attributes.prog_name, "harp", sizeof("harp"));
  steering->program = bpf(BPF_PROG_LOAD, &attributes);
  return steering->program < 0 ? steering->program : 0;
}

/* The verifier's reason, which is in the last line of its log but one: statistics follow. */
static const char *reason(char *log)
{
  char *end = strstr(log, "\nprocessed ");
  if (end) {
    *end = '\0';
  }
  const char *line = strrchr(log, '\n');
  return line ? line + 1 : log;
}

static int refused(struct xdp_steering *steering, const char *name, uint32_t flags, int rc,
                   char *error)
{
  char *log = calloc(1, LOG_BYTES);
  if (log) {
    load(steering, flags, log);
  }
  harp_port_fail(error, rc, "xdp:%s: the kernel refuses the XDP program: %s: %.200s", name,
                 strerror(-rc), log ? reason(log) : "");
  free(log);
  return rc;
}

static int no_privilege(const char *name, int rc, char *error)
{
  return harp_port_fail(error, rc,
                        "xdp:%s: may not load an XDP program: %s; add CAP_NET_ADMIN, CAP_BPF and "
                        "CAP_NET_RAW, or use packet:%s, which needs CAP_NET_RAW only",
                        name, strerror(-rc), name);
}

void harp_xdp_steering_init(struct xdp_steering *steering)
{
  *steering =
      (struct xdp_steering){.ports = -1, .settings = -1, .sockets = -1, .program = -1, .link = -1};
}

int harp_xdp_steering_open(struct xdp_steering *steering, const char *name, uint32_t address,
                           const uint8_t *mac, unsigned sockets, bool several, char *error)
{
  int rc = make_maps(steering, address, mac, sockets);
  if (rc == -EPERM) {
    return no_privilege(name, rc, error);
  }
  if (rc < 0) {
    return harp_port_fail(error, rc, "xdp:%s: cannot make a BPF map: %s; XDP needs Linux 5.10",
                          name, strerror(-rc));
  }
  const uint32_t flags = several ? BPF_F_XDP_HAS_FRAGS : 0;
  rc = load(steering, flags, NULL);
  if (rc == 0) {
    return 0;
  }
  if (rc == -EPERM) {
    return no_privilege(name, rc, error);
  }
  return refused(steering, name, flags, rc, error);
}

int harp_xdp_steering_add(struct xdp_steering *steering, unsigned queue, int socket)
{
  return update(steering->sockets, queue, &socket);
}

static int attach(struct xdp_steering *steering, int ifindex, uint32_t mode)
{
  union bpf_attr attributes = {
      .link_create.prog_fd = (uint32_t)steering->program,
      .link_create.target_ifindex = (uint32_t)ifindex,
      .link_create.attach_type = BPF_XDP,
      .link_create.flags = mode,
  };
  steering->link = bpf(BPF_LINK_CREATE, &attributes);
  return steering->link < 0 ? steering->link : 0;
}

int harp_xdp_steering_attach(struct xdp_steering *steering, const char *name, int ifindex,
                             char *error)
{
  int rc = attach(steering, ifindex, XDP_FLAGS_DRV_MODE);
  steering->native = rc == 0;
  if (rc < 0 && rc != -EBUSY && rc != -EEXIST && rc != -EPERM) {
    rc = attach(steering, ifindex, XDP_FLAGS_SKB_MODE);
  }
  if (rc == -EBUSY || rc == -EEXIST) {
    return harp_port_fail(
        error, rc,
        "xdp:%s: another XDP program is attached, of another process with HARP or "
        "of another service; see ip link show %s, end its owner, or use packet:%s",
        name, name, name);
  }
  if (rc == -EPERM) {
    return no_privilege(name, rc, error);
  }
  if (rc < 0) {
    return harp_port_fail(error, rc,
                          "xdp:%s: cannot attach the XDP program: %s; the kernel's log (dmesg) may "
                          "say why; a smaller MTU or LRO off (ethtool -K %s lro off) may help",
                          name, strerror(-rc), name);
  }
  return 0;
}

void harp_xdp_steering_hold(struct xdp_steering *steering, uint16_t first, uint16_t last)
{
  for (uint32_t port = first; port <= last; port++) {
    atomic_fetch_or(&steering->held[port / XDP_PORTS_PER_WORD], UINT64_C(1)
                                                                    << port % XDP_PORTS_PER_WORD);
  }
}

uint32_t harp_xdp_steering_program(const struct xdp_steering *steering)
{
  struct bpf_prog_info info = {0};
  union bpf_attr attributes = {
      .info.bpf_fd = (uint32_t)steering->program,
      .info.info_len = sizeof(info),
      .info.info = (uint64_t)(uintptr_t)&info,
  };
  return bpf(BPF_OBJ_GET_INFO_BY_FD, &attributes) < 0 ? 0 : info.id;
}

void harp_xdp_steering_close(struct xdp_steering *steering)
{
  harp_descriptor_close(steering->link);
  harp_descriptor_close(steering->program);
  harp_descriptor_close(steering->sockets);
  harp_descriptor_close(steering->settings);
  harp_descriptor_close(steering->ports);
  if (steering->held) {
    munmap((void *)(uintptr_t)steering->held, MAP_BYTES);
  }
  steering->held = NULL;
}
