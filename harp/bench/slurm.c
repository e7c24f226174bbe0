/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/bench/slurm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool variable_is(const char *name, int number)
{
  const char *value = getenv(name);
  char text[16];
  snprintf(text, sizeof(text), "%d", number);
  return value && strcmp(value, text) == 0;
}

/* The list that has the node of rank 0 first. */
static const char *node_list(int rank, int ranks)
{
  const char *nodes = getenv("SLURM_STEP_NODELIST");
  bool is_task = variable_is("SLURM_PROCID", rank) && variable_is("SLURM_STEP_NUM_TASKS", ranks);
  return nodes && is_task ? nodes : getenv("SLURM_JOB_NODELIST");
}

bool slurm_first_node(int rank, int ranks, char *name, size_t size)
{
  const char *at = node_list(rank, ranks);
  size_t length = 0;
  bool skips = false; /* behind the first of several numbers in brackets: gpu[03-05,9]-ib */
  bool brackets = false;
  for (; at && *at && (brackets || *at != ','); at++) {
    if (*at == '[' || *at == ']') {
      brackets = *at == '[';
      skips = false;
      continue;
    }
    skips = skips || (brackets && (*at == '-' || *at == ','));
    if (!skips) {
      if (length + 1 >= size) {
        return false;
      }
      name[length++] = *at;
    }
  }
  name[length] = '\0';
  return length > 0;
}

const char *slurm_this_node(void) { return getenv("SLURMD_NODENAME"); }
