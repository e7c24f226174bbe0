/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/bench/perf_report.h"

#include <errno.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

static void put_string(FILE *file, const char *text)
{
  if (!text) {
    fputs("null", file);
    return;
  }
  fputc('"', file);
  for (; *text; text++) {
    unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\') {
      fprintf(file, "\\%c", c);
    } else if (c < 0x20) {
      fprintf(file, "\\u%04x", c);
    } else {
      fputc(c, file);
    }
  }
  fputc('"', file);
}

static void put_text(FILE *file, const char *name, const char *text)
{
  fprintf(file, ", \"%s\": ", name);
  put_string(file, text);
}

/* Negative: no value, written as null. */
static void put_number(FILE *file, const char *name, double value)
{
  if (value < 0) {
    fprintf(file, ", \"%s\": null", name);
  } else {
    fprintf(file, ", \"%s\": %.9g", name, value);
  }
}

static void processor_name(char *name, size_t size)
{
  char line[256];
  FILE *file = fopen("/proc/cpuinfo", "re");
  name[0] = '\0';
  while (file && !name[0] && fgets(line, sizeof(line), file)) {
    char *colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) == 0 && colon) {
      line[strcspn(line, "\n")] = '\0';
      snprintf(name, size, "%s", colon + 2);
    }
  }
  if (file) {
    fclose(file);
  }
}

static void system_congestion(char *name, size_t size)
{
  FILE *file = fopen("/proc/sys/net/ipv4/tcp_congestion_control", "re");
  name[0] = '\0';
  if (file) {
    if (!fgets(name, (int)size, file)) {
      name[0] = '\0';
    }
    name[strcspn(name, "\n")] = '\0';
    fclose(file);
  }
}

static void put_host(const struct report *report)
{
  struct utsname system;
  char processor[128], congestion[32], date[32];
  time_t now = time(NULL);
  struct tm utc;
  FILE *file = report->json;
  uname(&system);
  processor_name(processor, sizeof(processor));
  system_congestion(congestion, sizeof(congestion));
  strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  fputs("{\"schema\": \"harp.perf/1\",\n \"host\": {\"name\": ", file);
  put_string(file, system.nodename);
  put_text(file, "kernel", system.release);
  put_text(file, "machine", system.machine);
  put_text(file, "processor", processor[0] ? processor : NULL);
  put_number(file, "processors", (double)sysconf(_SC_NPROCESSORS_ONLN));
  put_text(file, "system_cc", congestion[0] ? congestion : NULL);
  put_text(file, "date", date);
  put_text(file, "plugin", report->options->plugin);
  put_text(file, "device", report->device);
  fputs("},\n \"records\": [", file);
}

static void put_header(const struct report *report)
{
  const struct options *options = report->options;
  fprintf(report->table, "# %s, %d ranks, %s by %s (API v%d), %u iterations, %u to warm up\n",
          report->operation->name, options->ranks, report->api->name, options->plugin,
          report->api->version, options->sizes[0].iterations, options->sizes[0].warmup);
  if (options->channels > 1) {
    fprintf(report->table, "# %u channels\n", options->channels);
  }
  fprintf(report->table, "# %10s %12s %8s %6s %5s %10s %8s %8s %7s %8s %9s %9s\n", "size", "count",
          "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "cpu", "p50", "p99");
  fprintf(report->table, "# %10s %12s %8s %6s %5s %10s %8s %8s %7s %8s %9s %9s\n", "(B)",
          "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(s/GB)", "(us)", "(us)");
  fflush(report->table);
}

int report_open(struct report *report)
{
  const char *path = report->options->json;
  bool to_stdout = path && strcmp(path, "-") == 0;
  report->table = to_stdout ? stderr : stdout;
  if (to_stdout) {
    report->json = stdout;
  } else if (path) {
    report->json = fopen(path, "we");
  }
  if (path && !report->json) {
    fprintf(stderr, "harp perf: --json %s cannot be written: %s\n", path, strerror(errno));
    return -1;
  }
  put_header(report);
  if (report->json) {
    put_host(report);
  }
  return 0;
}

static const char *transport(const struct report *report)
{
  if (report->options->transport) {
    return report->options->transport;
  }
  return strcmp(report->api->name, "KERNEL") == 0 ? "kernel-tcp" : report->api->name;
}

static const char *direction(const struct report *report)
{
  return report->options->direction ? report->options->direction : report->operation->direction;
}

/* Maps 0, which means unknown or not given, to no value. */
static double told(int value) { return value > 0 ? value : -1; }

static void put_record(struct report *report, const struct measurement *measured, double algbw,
                       double busbw)
{
  const struct options *options = report->options;
  FILE *file = report->json;
  fputs(report->records++ ? ",\n  {" : "\n  {", file);
  fputs("\"wire\": ", file);
  put_string(file, options->wire);
  put_text(file, "transport", transport(report));
  put_number(file, "api", report->api->version);
  put_text(file, "op", report->operation->name);
  put_text(file, "dtype", options->datatype->name);
  put_number(file, "size", (double)measured->size);
  put_text(file, "direction", direction(report));
  put_number(file, "outstanding", measured->outstanding);
  put_number(file, "rate_gbs", options->rate_gbit > 0 ? options->rate_gbit / 8 : -1);
  put_number(file, "time_us", measured->time_us);
  put_number(file, "algbw_gbs", algbw);
  put_number(file, "busbw_gbs", busbw);
  put_number(file, "wrong", (double)measured->wrong);
  put_number(file, "cpu_s_per_gb", measured->cpu_s_per_gb);
  put_number(file, "nranks", options->ranks);
  put_number(file, "flows", told(report->flows));
  put_number(file, "mtu", told(options->mtu));
  put_text(file, "offloads", options->offloads);
  put_number(file, "pair", options->pair);
  put_text(file, "kernel_cc", report->congestion);
  put_number(file, "nsocks", told(report->sockets));
  put_number(file, "p50_us", measured->p50_us);
  put_number(file, "p99_us", measured->p99_us);
  put_number(file, "channels", options->channels);
  put_text(file, "version", HARP_VERSION);
  fputc('}', file);
}

static void put_optional(FILE *file, int width, int digits, double value)
{
  if (value < 0) {
    fprintf(file, " %*s", width, "-");
  } else {
    fprintf(file, " %*.*f", width, digits, value);
  }
}

void report_add(struct report *report, const struct measurement *measured)
{
  FILE *table = report->table;
  bool timed = measured->time_us >= 0;
  double algbw = timed ? (double)measured->size / measured->time_us / 1e3 : -1;
  double busbw = timed ? algbw * report->operation->bus_factor(report->options->ranks) : -1;
  fprintf(table, "  %10zu %12zu %8s %6s %5d", measured->size,
          measured->size / report->options->datatype->size, report->options->datatype->name,
          report->operation->redop, report->operation->root);
  put_optional(table, 10, 2, measured->time_us);
  put_optional(table, 8, 3, algbw);
  put_optional(table, 8, 3, busbw);
  fprintf(table, " %7llu", (unsigned long long)measured->wrong);
  put_optional(table, 8, 3, measured->cpu_s_per_gb);
  put_optional(table, 9, 2, measured->p50_us);
  put_optional(table, 9, 2, measured->p99_us);
  fputc('\n', table);
  fflush(table);
  if (report->json) {
    put_record(report, measured, algbw, busbw);
  }
}

static int close_json(struct report *report)
{
  FILE *file = report->json;
  report->json = NULL;
  if (!file) {
    return 0;
  }
  fputs("\n ]}\n", file);
  int bad = ferror(file);
  bad |= file == stdout ? fflush(file) : fclose(file);
  if (bad) {
    fprintf(stderr, "harp perf: --json %s could not be written completely: is the disk full?\n",
            report->options->json);
  }
  return bad ? -1 : 0;
}

int report_close(struct report *report)
{
  int bad = close_json(report);
  if (ferror(report->table) || fflush(report->table)) {
    fputs("harp perf: the table could not be written completely: is the disk full?\n", stderr);
    bad = -1;
  }
  return bad;
}
