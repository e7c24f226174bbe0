/* SPDX-License-Identifier: Apache-2.0 */
/* The program: runs scenarios given as text or drawn from seeds, and prints a line of JSON for
 * each. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

static const char usage[] =
    "Usage: harp-sim [--capture FILE] SCENARIO     run key=value,key=value,...\n"
    "       harp-sim [--capture FILE] --seeds A-B  run the scenarios of seeds A to B\n"
    "       harp-sim --print SEED                  show the scenario of a seed\n"
    "Prints a line of JSON for each run. --capture writes its frames as pcapng.\n"
    "Exit: 0 success, 1 a rule was broken, 2 wrong usage.\n"
    "\nKeys, their defaults, and their meaning:\n";

static int wrong_usage(const char *why)
{
  fprintf(stderr, "harp-sim: %s; see --help\n", why);
  return 2;
}

static bool run_one(const struct sim_spec *spec, FILE *capture)
{
  struct sim *sim = sim_allocate(1, sizeof *sim);
  sim_run(sim, spec, capture);
  report_write(sim, stdout);
  bool good = !sim->failed;
  sim_free(sim);
  free(sim);
  return good;
}

static bool read_seeds(const char *text, uint64_t *first, uint64_t *last)
{
  char *end;
  *first = *last = strtoull(text, &end, 10);
  if (end != text && *end == '-') {
    text = end + 1;
    *last = strtoull(text, &end, 10);
  }
  return end != text && !*end && *first <= *last;
}

static int run_seeds(const char *text, FILE *capture)
{
  uint64_t first, last;
  if (!read_seeds(text, &first, &last)) {
    return wrong_usage("--seeds: write a number, or A-B with A no larger than B");
  }
  bool good = true;
  for (uint64_t seed = first; seed <= last; seed++) {
    struct sim_spec spec;
    spec_draw(&spec, seed);
    good &= run_one(&spec, capture);
  }
  return good ? 0 : 1;
}

static int run_scenario(const char *text, FILE *capture)
{
  struct sim_spec spec;
  char error[SIM_MESSAGE];
  spec_default(&spec);
  if (!spec_parse(&spec, text, error)) {
    return wrong_usage(error);
  }
  return run_one(&spec, capture) ? 0 : 1;
}

static int print_drawn(const char *text)
{
  uint64_t seed, last;
  struct sim_spec spec;
  if (!read_seeds(text, &seed, &last)) {
    return wrong_usage("--print: write a number");
  }
  spec_draw(&spec, seed);
  spec_write(&spec, stdout);
  putchar('\n');
  return 0;
}

int main(int argc, char **argv)
{
  const char *seeds = NULL, *scenario = NULL;
  FILE *capture = NULL;
  for (int i = 1; i < argc; i++) {
    bool more = i + 1 < argc;
    if (strcmp(argv[i], "--help") == 0) {
      fputs(usage, stdout);
      spec_help(stdout);
      return 0;
    }
    if (strcmp(argv[i], "--print") == 0 && more) {
      return print_drawn(argv[i + 1]);
    }
    if (strcmp(argv[i], "--seeds") == 0 && more) {
      seeds = argv[++i];
    } else if (strcmp(argv[i], "--capture") == 0 && more && !capture) {
      capture = fopen(argv[++i], "wb");
      if (!capture) {
        fprintf(stderr, "harp-sim: %s: %s; name a file that can be written\n", argv[i],
                strerror(errno));
        return 1;
      }
    } else if (*argv[i] != '-' && !scenario) {
      scenario = argv[i];
    } else {
      return wrong_usage(argv[i]);
    }
  }
  if (!seeds == !scenario) {
    return wrong_usage("name a scenario or seeds");
  }
  traffic_pattern_create();
  int status = seeds ? run_seeds(seeds, capture) : run_scenario(scenario, capture);
  if (capture && fclose(capture) != 0) {
    fprintf(stderr, "harp-sim: the capture is incomplete: %s\n", strerror(errno));
    status = 1;
  }
  return status;
}
