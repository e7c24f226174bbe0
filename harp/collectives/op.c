/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/op.h"

const char *kind_name(int kind)
{
  static const char *const names[HARP_KINDS] = {
      [HARP_ALL_REDUCE] = "all_reduce",
      [HARP_REDUCE] = "reduce",
      [HARP_BROADCAST] = "broadcast",
      [HARP_ALL_GATHER] = "all_gather",
      [HARP_REDUCE_SCATTER] = "reduce_scatter",
      [HARP_ALL_TO_ALL] = "all_to_all",
      [HARP_GATHER] = "gather",
      [HARP_SCATTER] = "scatter",
      [HARP_BARRIER] = "barrier",
      [HARP_SEND] = "send",
      [HARP_RECEIVE] = "recv",
  };
  return kind >= 0 && kind < HARP_KINDS ? names[kind] : "an unknown operation";
}
