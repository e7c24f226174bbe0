/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp perf. It runs a timed pass (unless only verified ones are requested) and a verified pass for
 * every size, then prints one line of the table. All ranks take the same steps and exchange the
 * result of each pass, so that a failure on one rank ends the run on all.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harp/bench/cpu.h"
#include "harp/bench/percentile.h"
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
  if (session_exchange(session, mine, sizeof(*mine))) {
    return -1;
  }
  const struct outcome *outcomes = session->everybody;
  for (int rank = 0; rank < session->options->ranks; rank++) {
    summary->failures += outcomes[rank].failed != 0;
    summary->wrong += outcomes[rank].wrong;
    if (outcomes[rank].elapsed_ns > summary->elapsed_ns) {
      summary->elapsed_ns = outcomes[rank].elapsed_ns;
    }
  }
  if (summary->failures && !mine->failed) {
    session_say(session, "ends because %d other %s failed", summary->failures,
                summary->failures == 1 ? "rank" : "ranks");
  }
  return summary->failures ? -1 : 0;
}

/* Runs the passes of all channels on all ranks, which start together. */
static int run_together(struct session *session, struct pass *passes, size_t size,
                        struct summary *summary)
{
  struct outcome mine = {0};
  if (summarise(session, &mine, summary)) {
    return -1;
  }
  mine.failed = session_run(session, passes, size) != 0;
  if (signals_stop()) {
    return -1; /* the other ranks notice that the links close */
  }
  for (unsigned i = 0; i < passes->channel_count; i++) {
    mine.wrong += passes[i].wrong;
  }
  mine.elapsed_ns = (double)(passes->pump.end_ns - passes->pump.start_ns);
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
  if (!pass->trips_us) {
    return;
  }
  qsort(pass->trips_us, pass->iterations, sizeof(*pass->trips_us), ascending);
  measured->p50_us = median_of(pass->trips_us, pass->iterations);
  measured->p99_us = percentile_99_of(pass->trips_us, pass->iterations);
}

/* The CPU time of a rank's machine during a pass, sent to the other ranks. */
struct machine_time {
  char machine[MACHINE_SIZE];
  double seconds; /* as from cpu_seconds */
};

/* Whether an earlier rank runs on the rank's machine. */
static bool is_counted(const struct machine_time *times, int rank)
{
  for (int i = 0; i < rank; i++) {
    if (strcmp(times[i].machine, times[rank].machine) == 0) {
      return true;
    }
  }
  return false;
}

/* The CPU time of all machines, each once. Negative: unknown. */
static double seconds_of_all(const struct machine_time *times, int ranks)
{
  double sum = 0;
  for (int rank = 0; rank < ranks; rank++) {
    if (!times[rank].machine[0] && ranks > 1) {
      return -1;
    }
    if (!is_counted(times, rank)) {
      if (times[rank].seconds < 0) {
        return -1;
      }
      sum += times[rank].seconds;
    }
  }
  return sum;
}

/* Called when all ranks have ended the pass. */
static int cpu_per_gb(struct session *session, const struct pass *pass, size_t size,
                      const struct cpu_sample *before, double baseline, double *per_gb)
{
  struct cpu_sample after = cpu_sample();
  struct machine_time mine = {.seconds = cpu_seconds(before, &after, baseline)};
  cpu_machine(mine.machine);
  if (session_exchange(session, &mine, sizeof(mine))) {
    return -1;
  }
  double seconds = seconds_of_all(session->everybody, pass->ranks);
  double moved = pass->operation->bytes_moved(pass->ranks, size) *
                 ((double)pass->warmup + (double)pass->iterations);
  *per_gb = seconds < 0 || moved <= 0 ? -1 : seconds / (moved / 1e9);
  return 0;
}

static int timed_pass(struct session *session, const struct sized *sized, double baseline,
                      struct measurement *measured)
{
  size_t size = sized->size;
  struct pass passes[OPTIONS_MAX_CHANNELS], *first = passes;
  struct summary summary;
  session_prepare(session, passes, size);
  for (unsigned i = 0; i < first->channel_count; i++) {
    passes[i].iterations = sized->iterations;
    passes[i].warmup = sized->warmup;
  }
  if (session->operation->round_trips && first->rank == 0 &&
      !(first->trips_us = calloc(first->iterations, sizeof(*first->trips_us)))) {
    session_say(session, "there is no memory for %u round trips: lower -n", first->iterations);
    return -1;
  }
  struct cpu_sample before = cpu_sample();
  int bad = run_together(session, passes, size, &summary);
  if (!bad) {
    measured->time_us = summary.elapsed_ns / 1e3 / first->iterations;
    percentiles(first, measured);
    bad = cpu_per_gb(session, first, size, &before, baseline, &measured->cpu_s_per_gb);
  }
  free(first->trips_us);
  return bad;
}

static int verified_pass(struct session *session, const struct sized *sized,
                         struct measurement *measured)
{
  unsigned most = session->options->verified_iterations;
  struct pass passes[OPTIONS_MAX_CHANNELS];
  struct summary summary;
  session_prepare(session, passes, sized->size);
  for (unsigned i = 0; i < passes->channel_count; i++) {
    passes[i].verify = true;
    passes[i].iterations = most && most < sized->iterations ? most : sized->iterations;
  }
  passes->inject = session->options->inject_wrong && passes->rank == passes->ranks - 1;
  int bad = run_together(session, passes, sized->size, &summary);
  measured->wrong = summary.wrong;
  return bad;
}

static bool is_timed(const struct session *session)
{
  return !session->options->verified && !session->operation->draws;
}

/* All ranks measure at the same time. There are no links yet, so what a plugin spends on idle links
 * counts as a cost of the messages. */
static double idle_baseline(const struct session *session)
{
  return is_timed(session) ? cpu_idle_baseline() : 0;
}

static int measure_all(struct session *session, struct report *report, double baseline,
                       uint64_t *wrong)
{
  const struct options *options = session->options;
  for (unsigned i = 0; i < options->size_count; i++) {
    const struct sized *sized = &options->sizes[i];
    struct measurement measured = {
        .size = sized->size,
        .outstanding = session->outstanding,
        .time_us = -1,
        .cpu_s_per_gb = -1,
        .p50_us = -1,
        .p99_us = -1,
    };
    if ((is_timed(session) && timed_pass(session, sized, baseline, &measured)) ||
        verified_pass(session, sized, &measured)) {
      return -1;
    }
    *wrong += measured.wrong;
    if (options->rank == 0) {
      report_add(report, &measured);
    }
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
      .sockets = session->sockets,
      .congestion = session->congestion,
      .device = session->device,
  };
  uint64_t wrong = 0;
  if (session_join(session)) {
    return FAILED;
  }
  double baseline = idle_baseline(session);
  if (session_connect(session)) {
    return FAILED;
  }
  if (session->options->rank == 0 && report_open(&report)) {
    return FAILED;
  }
  int bad = measure_all(session, &report, baseline, &wrong);
  if (session->options->rank == 0 && report_close(&report)) {
    bad = -1;
  }
  if (wrong && session->options->rank == 0) {
    session_say(session, "%llu elements arrived wrong", (unsigned long long)wrong);
  }
  return bad || wrong ? FAILED : ALL_WELL;
}

int main(int argc, char **argv)
{
  struct options options;
  struct session session;
  int status = options_parse(&options, argc, argv);
  if (status >= 0) {
    return status;
  }
  if (options.pause_ms) {
    signals_await_pause();
  }
  if (session_open(&session, &options)) {
    session_decline(&session);
    status = FAILED;
  } else {
    status = run(&session);
  }
  session_close(&session);
  return status;
}
