/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pass of top-k, in all instruction sets of this CPU, beside a plain loop.
 *
 * Exit: 0, or 1 after printing what is wrong.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "harp/collectives/folds.h"

enum { MOST = 200 };

struct state {
  float rest[MOST], gradient[MOST], values[MOST];
  int32_t indices[MOST];
};

static unsigned wrong;

static void expect(bool right, const char *what, unsigned set, size_t count)
{
  if (!right && wrong++ < 20) {
    printf("wrong: %s: set %u, %zu elements\n", what, set, count);
  }
}

/* Zeros of both signs, equal values, and numbers that are not finite. */
static struct state start(void)
{
  static const float kinds[] = {0.0f, -0.0f, 1, -1, 2, -2, 0.5f, INFINITY, -INFINITY, NAN, 1e-40f};
  enum { KINDS = sizeof kinds / sizeof kinds[0] };
  struct state state = {.values = {0}};
  uint32_t random = 1;
  for (unsigned i = 0; i < MOST; i++) {
    random = random * 1664525 + 1013904223;
    state.rest[i] = kinds[(random >> 8) % KINDS];
    state.gradient[i] = i % 3 ? kinds[(random >> 20) % KINDS] : -state.rest[i];
    state.values[i] = 7;
    state.indices[i] = 7;
  }
  return state;
}

static size_t right_pass(struct state *state, size_t count, float bound, size_t room)
{
  size_t found = 0;
  for (size_t i = 0; i < count; i++) {
    state->rest[i] += state->gradient[i];
    state->gradient[i] = 0;
    if (isnan(state->rest[i]) || isnan(bound) || fabsf(state->rest[i]) >= bound) {
      if (found < room) {
        state->indices[found] = (int32_t)i;
        state->values[found] = state->rest[i];
      }
      found++;
    }
  }
  return found;
}

/* Which NaN a sum gives is open, so all count as one. */
static bool same(const float *one, const float *other)
{
  for (unsigned i = 0; i < MOST; i++) {
    if (memcmp(&one[i], &other[i], sizeof *one) != 0 && !(isnan(one[i]) && isnan(other[i]))) {
      return false;
    }
  }
  return true;
}

static void check(unsigned set, size_t count, float bound, size_t room)
{
  struct state found = start(), right = start();
  size_t number = folds_choose(set)->candidates(found.rest, found.gradient, count, bound,
                                                found.indices, found.values, room);
  expect(number == right_pass(&right, count, bound, room), "the number", set, count);
  expect(same(found.rest, right.rest), "the sums", set, count);
  expect(same(found.gradient, right.gradient), "the gradient", set, count);
  expect(same(found.values, right.values), "the values", set, count);
  expect(memcmp(found.indices, right.indices, sizeof right.indices) == 0, "the indices", set,
         count);
}

int main(void)
{
  static const float bounds[] = {0, 1, 2, 2.5f, INFINITY, NAN};
  unsigned sets = 0;
  for (; folds_choose(sets); sets++) {
    for (size_t count = 0; count <= MOST; count++) {
      for (unsigned i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        check(sets, count, bounds[i], MOST);
        check(sets, count, bounds[i], 5);
      }
    }
  }
  printf("%u instruction sets, %u wrong\n", sets, wrong);
  return wrong > 0;
}
