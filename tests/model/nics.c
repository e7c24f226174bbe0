/* SPDX-License-Identifier: Apache-2.0 */
/* Outages of NICs: the frames of a NIC are lost for a time, and its process may notice. */
#include "harp/stack/bytes.h"
#include "tests/model/links.h"

/* ns that an outage counts as a disturbance although other NICs work: a flow needs some time to
 * notice it and to move, and several outages in a row keep it from moving. */
#define MOVE_NS (TIMEOUT_NS / 8)

unsigned nic_of_address(const struct side *side, uint32_t address)
{
  unsigned nic = 0;
  while (nic < side->setup.nics && HOST_NIC_ADDRESS(side->setup.address, nic) != address) {
    nic++;
  }
  return nic;
}

/* Returns the time when the side has a NIC that works, ns. */
static uint64_t cut_off_until(const struct side *side)
{
  uint64_t until = side->off_until[0];
  for (unsigned i = 1; i < side->setup.nics; i++) {
    until = HARP_MIN(until, side->off_until[i]);
  }
  return until;
}

uint64_t nics_off_until(void)
{
  uint64_t until = 0;
  for (unsigned i = 0; i < SIDES * HOST_NICS; i++) {
    until = HARP_MAX(until, world.sides[i / HOST_NICS].off_until[i % HOST_NICS]);
  }
  return until;
}

uint64_t nics_cut_off_until(void)
{
  return HARP_MAX(cut_off_until(&world.sides[0]), cut_off_until(&world.sides[1]));
}

/* The process learns of the outage at the next poll of the NIC, or at the next tick. */
static void tell_host(struct side *side, unsigned nic, enum outage outage)
{
  if (side->gone) {
    return;
  }
  struct host_nic *told = &side->host->nics[nic];
  if (outage == OUTAGE_DOWN) {
    told->down_until = side->off_until[nic];
    side_polls_soon(side, nic);
  } else if (outage == OUTAGE_UNPLUGGED) {
    told->unplugged_until = side->off_until[nic];
  }
  side->warns_of_nics |= outage != OUTAGE_SILENT;
}

void nic_goes_off(struct side *side, unsigned nic, enum outage outage, uint64_t ns)
{
  uint64_t before = HARP_MAX(world.now, nics_cut_off_until());
  side->off_until[nic] = HARP_MAX(side->off_until[nic], world.now + ns);
  tell_host(side, nic, outage);
  world.had_outage = true;
  uint64_t after = HARP_MAX(before, nics_cut_off_until());
  world_disturb(after - before, "no pair of NICs worked for too long");
  world_disturb(HARP_MIN(ns, MOVE_NS), "NICs failed too often");
  if (ns > OPENING_NS) {
    excuse_opening("an outage began before it was open");
  }
  excuse_closing();
}
