/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/engine/nics.h"

#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

#include "harp/engine/log.h"
#include "harp/engine/poll_threads.h"
#include "harp/engine/rank_topology.h"

/* Several instances that nobody has asked for must fit into the agent's block. Only the open device
 * knows its size. */
static int check_block(const struct harp_engine *engine, const struct harp_claim *claim,
                       char *error)
{
  uint32_t block = engine->port->info.local_ports;
  unsigned instances = engine->config.instances;
  if (claim->config.instances || instances == 1 || block == 0 ||
      harp_instances_ports(instances, "") <= block) {
    return 0;
  }
  snprintf(error, HARP_ENGINE_ERROR_SIZE,
           "the agent gives this rank %u local ports; start harp agent with a larger --block",
           block);
  return -EADDRINUSE;
}

/* How a process opens a NIC. */
struct opening {
  bool guest; /* as in port.h */
  bool start; /* at once */
};

static int open_engine(struct harp_engine **engine, const struct harp_claim *claim,
                       const struct harp_config *config, struct opening opening, char *error)
{
  int result = harp_engine_open(engine, config, opening.guest, error);
  if (result != 0) {
    return result;
  }
  result = check_block(*engine, claim, error);
  if (result == 0 && opening.start) {
    result = harp_engine_start(*engine, error);
  }
  if (result != 0) {
    harp_engine_close(*engine);
  }
  return result;
}

/* The number of instances of a claimed NIC. If the home NIC could not have several, no other NIC
 * gets several by default: most of them start when it is too late for another number. */
static unsigned choose_instances(const struct harp_nics *nics, const struct harp_claim *claim)
{
  if (nics->one_instance && !claim->config.instances) {
    return 1;
  }
  return harp_instances_choose(&claim->config, nics->claims.count, harp_usable_cpus(""), "");
}

/* Opens a claimed NIC. A limit on memory, open files, threads or local ports may allow one instance
 * alone, so several that nobody has asked for become one. */
static int open_nic(struct harp_nics *nics, const struct harp_claim *claim, struct opening opening,
                    char *error)
{
  struct harp_config config = claim->config;
  struct harp_engine *engine;
  config.instances = choose_instances(nics, claim);
  int result = open_engine(&engine, claim, &config, opening, error);
  if (result != 0 && !claim->config.instances && config.instances > 1) {
    char why[HARP_ENGINE_ERROR_SIZE];
    unsigned wanted = config.instances;
    memcpy(why, error, sizeof why);
    config.instances = 1;
    result = open_engine(&engine, claim, &config, opening, error);
    if (result == 0) {
      nics->one_instance = true;
      harp_log_post(HARP_LOG_WARN, "HARP: %.100s has one instance instead of %u: %s", config.device,
                    wanted, why);
    }
  }
  if (result == 0) {
    nics->engines[claim->device] = engine;
  }
  return result;
}

/* How the process opens a NIC that is not its home NIC. Another local rank may want the AF_XDP
 * sockets of such a NIC. A process takes them at once if it is the only one of its host, because
 * their start takes privileges. */
static struct opening opening_of(const struct harp_claim *claim, bool alone)
{
  return (struct opening){
      .guest = claim->shared && !alone,
      .start = !claim->shared || (alone && !harp_config_has_scheme(claim->config.device, "packet")),
  };
}

static void open_others(struct harp_nics *nics)
{
  char error[HARP_ENGINE_ERROR_SIZE];
  struct harp_rank_topology topology;
  if (nics->claims.count == 1) {
    return;
  }
  harp_rank_topology_find(&topology, "");
  for (unsigned i = 1; i < nics->claims.count; i++) {
    struct harp_claim *claim = &nics->claims.of[i];
    if (open_nic(nics, claim, opening_of(claim, topology.local_size == 1), error) != 0) {
      harp_log_post(HARP_LOG_WARN,
                    "HARP: device %u is served by this process's home NIC (%.100s): %s",
                    claim->device, nics->claims.of[0].config.device, error);
      harp_claim_release(claim);
    }
  }
}

/* The effective value of an interface's sysctl: the larger of the interface's and the host's. */
static int arp_ignore(const char *interface)
{
  const char *names[] = {"all", interface};
  int most = 0;
  for (unsigned i = 0; i < 2; i++) {
    char path[128];
    int value = 0;
    snprintf(path, sizeof path, "/proc/sys/net/ipv4/conf/%.32s/arp_ignore", names[i]);
    FILE *file = fopen(path, "re");
    if (file) {
      most = fscanf(file, "%d", &value) == 1 && value > most ? value : most;
      fclose(file);
    }
  }
  return most;
}

/* Finds another NIC in the subnet of this one, if the kernel answers ARP on this NIC for the other
 * NIC's address, too. Peers may then send the other NIC's frames to this one. NULL: none. */
static const struct harp_engine *arp_flux(const struct harp_nics *nics,
                                          const struct harp_engine *engine)
{
  const struct harp_port_info *info = &engine->port->info;
  char interface[IF_NAMESIZE] = "";
  harp_config_interface(engine->config.device, interface);
  for (unsigned i = 0; i < HARP_DEVICES_MAX && info->shares_address; i++) {
    const struct harp_engine *other = nics->engines[i];
    if (other && other != engine && other->port->info.shares_address &&
        harp_engine_on_link(other, info->address)) {
      return arp_ignore(interface) == 0 ? other : NULL;
    }
  }
  return NULL;
}

static void warn_of_arp_flux(const struct harp_nics *nics)
{
  for (unsigned i = 0; i < HARP_DEVICES_MAX; i++) {
    const struct harp_engine *engine = nics->engines[i];
    const struct harp_engine *other = engine ? arp_flux(nics, engine) : NULL;
    if (other) {
      harp_log_post(
          HARP_LOG_WARN,
          "HARP: %.64s and %.64s are in one subnet, and the kernel answers ARP for each "
          "address on both. Peers may send frames to the wrong NIC. HARP accepts them, but the "
          "NICs share the load unevenly; sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2",
          engine->config.device, other->config.device);
      return;
    }
  }
}

int harp_nics_open(struct harp_nics *nics, char *error)
{
  memset(nics, 0, sizeof *nics);
  int result = harp_claims_take(&nics->claims, error);
  if (result != 0) {
    return result;
  }
  const struct harp_claim *home = &nics->claims.of[0];
  nics->home = home->device;
  result = open_nic(nics, home, (struct opening){.start = true}, error);
  if (result != 0) {
    harp_claims_release(&nics->claims);
    return result;
  }
  open_others(nics);
  warn_of_arp_flux(nics);
  return 0;
}

void harp_nics_close(struct harp_nics *nics)
{
  for (unsigned i = 0; i < HARP_DEVICES_MAX; i++) {
    harp_engine_close(nics->engines[i]);
  }
  harp_claims_release(&nics->claims);
}

void harp_nics_forget(struct harp_nics *nics)
{
  for (unsigned i = 0; i < HARP_DEVICES_MAX; i++) {
    if (nics->engines[i]) {
      harp_engine_forget(nics->engines[i]);
    }
  }
  for (unsigned i = 0; i < nics->claims.count; i++) {
    harp_claim_forget(&nics->claims.of[i]);
  }
}
