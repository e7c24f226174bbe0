/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp perf. For every size it runs a timed pass (unless only verified ones are requested) and a
 * verified pass, then prints one line of the table. All ranks take the same steps and exchange the
 * result of each pass, so that a failure on one rank ends the run on all.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harp/bench/cpu.h"
#include "harp/bench/perf_report.h"
#include "harp/bench/session.h"
#include "harp/bench/signals.h"

enum { ALL_WELL = 0, FAILED = 1 };

/* A rank's result of a pass, sent to the other ranks. */
struct outcome {
  int32_t failed;
  int32_t unused;
  uint64_t wrong;
  double elapsed_ns; /* of the measured iterations */
};

/* The outcomes of all ranks; elapsed_ns is that of the slowest rank. */
struct summary {
  int failures;
  uint64_t wrong;
  double elapsed_ns;
};

static int summarise(struct session *session, const struct outcome *mine, struct summary *summary)
{
  *summary = (struct summary){0};
  if (session_exchange(session, mine, sizeof(*mine)))
    return -1;
  const struct outcome *outcomes = session->everybody;
  for (int rank = 0; rank < session->options->ranks; rank++) {
    summary->failures += outcomes[rank].failed != 0;
    summary->wrong += outcomes[rank].wrong;
    if (outcomes[rank].elapsed_ns > summary->elapsed_ns)
      summary->elapsed_ns = outcomes[rank].elapsed_ns;
  }
  if (summary->failures && !mine->failed)
    session_say(session, "ends because %d other %s failed", summary->failures,
                summary->failures == 1 ? "rank" : "ranks");
  return summary->failures ? -1 : 0;
}

/* Runs one pass on all ranks, which start together. */
static int run_together(struct session *session, struct pass *pass, struct summary *summary)
{
  struct outcome mine = {0};
  if (summarise(session, &mine, summary))
    return -1;
  mine.failed = session_run(session, pass) != 0;
  if (signals_stop())
    return -1; /* the other ranks notice that the links close */
  mine.wrong = pass->wrong;
  mine.elapsed_ns = (double)(pass->pump.end_ns - pass->pump.start_ns);
  return summarise(session, &mine, summary);
}

static int ascending(const void *left, const void *right)
{
  double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

static void percentiles(struct pass *pass, struct measurement *measured)
{
  measured->p50_us = measured->p99_us = -1;
  if (!pass->trips_us)
    return;
  qsort(pass->trips_us, pass->iterations, sizeof(*pass->trips_us), ascending);
  measured->p50_us = pass->trips_us[pass->iterations / 2];
  measured->p99_us = pass->trips_us[(size_t)pass->iterations * 99 / 100];
}

static double cpu_per_gb(const struct pass *pass, const struct cpu_sample *before, double baseline)
{
  struct cpu_sample after = cpu_sample();
  double seconds = cpu_seconds(before, &after, baseline);
  double moved = pass->operation->bytes_moved(pass->ranks, pass->size) *
                 ((double)pass->warmup + (double)pass->iterations);
  return seconds < 0 || moved <= 0 ? -1 : seconds / (moved / 1e9);
}

static int timed_pass(struct session *session, size_t size, double baseline,
                      struct measurement *measured)
{
  struct pass pass;
  struct summary summary;
  session_prepare(session, &pass, size);
  pass.warmup = session->options->warmup;
  if (session->operation->round_trips && pass.rank == 0 &&
      !(pass.trips_us = calloc(pass.iterations, sizeof(*pass.trips_us)))) {
    session_say(session, "there is no memory for %u round trips: lower -n", pass.iterations);
    return -1;
  }
  struct cpu_sample before = cpu_sample();
  int bad = run_together(session, &pass, &summary);
  if (!bad) {
    measured->time_us = summary.elapsed_ns / 1e3 / pass.iterations;
    measured->cpu_s_per_gb = cpu_per_gb(&pass, &before, baseline);
    percentiles(&pass, measured);
  }
  free(pass.trips_us);
  return bad;
}

static int verified_pass(struct session *session, size_t size, struct measurement *measured)
{
  struct pass pass;
  struct summary summary;
  session_prepare(session, &pass, size);
  pass.verify = true;
  pass.inject = session->options->inject_wrong && pass.rank == pass.ranks - 1;
  int bad = run_together(session, &pass, &summary);
  measured->wrong = summary.wrong;
  return bad;
}

/* Rank 0 measures while the others wait in their next exchange. */
static double idle_baseline(const struct session *session)
{
  return session->options->rank == 0 ? cpu_idle_baseline() : 0;
}

static size_t next_size(const struct options *options, size_t size)
{
  size_t smallest = operation_find(options->op)->unit;
  return size ? size * options->factor : smallest;
}

static int measure_all(struct session *session, struct report *report, uint64_t *wrong)
{
  const struct options *options = session->options;
  bool times = !options->verified && !session->operation->draws;
  double baseline = times ? idle_baseline(session) : 0;
  for (size_t size = options->min_size; size <= options->max_size;
       size = next_size(options, size)) {
    struct measurement measured = {
        .size = size,
        .outstanding = session->outstanding,
        .time_us = -1,
        .cpu_s_per_gb = -1,
        .p50_us = -1,
        .p99_us = -1,
    };
    if ((times && timed_pass(session, size, baseline, &measured)) ||
        verified_pass(session, size, &measured))
      return -1;
    *wrong += measured.wrong;
    if (options->rank == 0)
      report_add(report, &measured);
  }
  return 0;
}

static int run(struct session *session)
{
  struct report report = {
      .options = session->options,
      .operation = session->operation,
      .api = &session->api,
      .flows = session->flows,
      .device = session->device,
  };
  uint64_t wrong = 0;
  if (session_connect(session))
    return FAILED;
  if (session->options->rank == 0 && report_open(&report))
    return FAILED;
  int bad = measure_all(session, &report, &wrong);
  if (session->options->rank == 0 && report_close(&report))
    bad = -1;
  if (wrong && session->options->rank == 0)
    session_say(session, "%llu elements arrived wrong", (unsigned long long)wrong);
  return bad || wrong ? FAILED : ALL_WELL;
}

int main(int argc, char **argv)
{
  struct options options;
  struct session session;
  int status = options_parse(&options, argc, argv);
  if (status >= 0)
    return status;
  if (options.pause_ms)
    signals_await_pause();
  status = session_open(&session, &options) ? FAILED : run(&session);
  session_close(&session);
  return status;
}
