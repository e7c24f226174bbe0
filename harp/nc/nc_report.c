/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the same report in two forms: a line in the format of `ss -ti`, and JSON with the names of
 * struct tcp_info and every counter that is not 0.
 */
#include "harp/nc/nc_report.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const char *const state_names[] = {
    [TCP_ESTABLISHED] = "ESTAB",    [TCP_SYN_SENT] = "SYN-SENT",     [TCP_SYN_RECV] = "SYN-RECV",
    [TCP_FIN_WAIT1] = "FIN-WAIT-1", [TCP_FIN_WAIT2] = "FIN-WAIT-2",  [TCP_TIME_WAIT] = "TIME-WAIT",
    [TCP_CLOSE] = "UNCONN",         [TCP_CLOSE_WAIT] = "CLOSE-WAIT", [TCP_LAST_ACK] = "LAST-ACK",
    [TCP_LISTEN] = "LISTEN",        [TCP_CLOSING] = "CLOSING",
};

/* The fields of struct tcp_info, by their own names without the prefix. */
#define FIELD(name) {#name, offsetof(struct tcp_info, tcpi_##name)}

static const struct field {
  const char *name;
  size_t offset; /* of a uint32_t */
} fields[] = {
    FIELD(rto),           FIELD(ato),
    FIELD(snd_mss),       FIELD(rcv_mss),
    FIELD(unacked),       FIELD(sacked),
    FIELD(lost),          FIELD(retrans),
    FIELD(fackets),       FIELD(last_data_sent),
    FIELD(last_ack_sent), FIELD(last_data_recv),
    FIELD(last_ack_recv), FIELD(pmtu),
    FIELD(rcv_ssthresh),  FIELD(rtt),
    FIELD(rttvar),        FIELD(snd_ssthresh),
    FIELD(snd_cwnd),      FIELD(advmss),
    FIELD(reordering),    FIELD(rcv_rtt),
    FIELD(rcv_space),     FIELD(total_retrans),
};

static uint32_t value_of(const struct tcp_info *info, const struct field *field)
{
  uint32_t value;
  memcpy(&value, (const char *)info + field->offset, sizeof value);
  return value;
}

static double seconds_of(const struct nc_pump *pump)
{
  return (double)(pump->moved_ns - pump->began_ns) / 1e9;
}

static void print_line(const struct nc_pump *pump, const uint64_t *counters)
{
  const struct tcp_info *info = &pump->info;
  fprintf(stderr, "harp nc: %s", nc_endpoint(nc_local(pump->nc)));
  fprintf(stderr, " - %s %s cubic", nc_endpoint(pump->nc->peer), state_names[info->tcpi_state]);
  fprintf(stderr, "%s%s", info->tcpi_options & TCPI_OPT_TIMESTAMPS ? " ts" : "",
          info->tcpi_options & TCPI_OPT_SACK ? " sack" : "");
  if (info->tcpi_options & TCPI_OPT_WSCALE) {
    fprintf(stderr, " wscale:%u,%u", info->tcpi_snd_wscale, info->tcpi_rcv_wscale);
  }
  fprintf(stderr, " rto:%g rtt:%.3f/%.3f ato:%g mss:%u pmtu:%u rcvmss:%u advmss:%u cwnd:%u",
          info->tcpi_rto / 1e3, info->tcpi_rtt / 1e3, info->tcpi_rttvar / 1e3, info->tcpi_ato / 1e3,
          info->tcpi_snd_mss, info->tcpi_pmtu, info->tcpi_rcv_mss, info->tcpi_advmss,
          info->tcpi_snd_cwnd);
  if (info->tcpi_snd_ssthresh < INT32_MAX) {
    fprintf(stderr, " ssthresh:%u", info->tcpi_snd_ssthresh);
  }
  fprintf(stderr,
          " bytes_sent:%" PRIu64 " bytes_retrans:%" PRIu64 " bytes_received:%" PRIu64
          " segs_out:%" PRIu64 " segs_in:%" PRIu64 " retrans:%u/%u rcv_space:%u\n",
          counters[HARP_COUNTER_tcp_payload_out] + counters[HARP_COUNTER_tcp_retransmit_bytes],
          counters[HARP_COUNTER_tcp_retransmit_bytes], counters[HARP_COUNTER_tcp_payload_in],
          counters[HARP_COUNTER_tcp_segments_out], counters[HARP_COUNTER_tcp_segments_in],
          info->tcpi_retrans, info->tcpi_total_retrans, info->tcpi_rcv_space);
  double seconds = seconds_of(pump);
  fprintf(stderr, "harp nc: %" PRIu64 " bytes out, %" PRIu64 " bytes in, %.3f s, %.3f GB/s\n",
          pump->bytes_out, pump->bytes_in, seconds,
          seconds > 0 ? (double)(pump->bytes_out + pump->bytes_in) / seconds / 1e9 : 0.0);
}

/* Writes a counter that is not 0. Returns what separates the next one. */
static const char *write_counter(FILE *file, const char *comma, const char *name, uint64_t value)
{
  if (value == 0) {
    return comma;
  }
  fprintf(file, "%s\"%s\": %" PRIu64, comma, name, value);
  return ", ";
}

static void write_json(FILE *file, const struct nc_pump *pump, const uint64_t *counters, int status)
{
  const struct tcp_info *info = &pump->info;
  fprintf(file, "{\"schema\": \"harp.nc/1\", \"status\": %d, \"local\": \"%s\"", status,
          nc_endpoint(nc_local(pump->nc)));
  fprintf(file, ", \"peer\": \"%s\", \"bytes_out\": %" PRIu64 ", \"bytes_in\": %" PRIu64,
          nc_endpoint(pump->nc->peer), pump->bytes_out, pump->bytes_in);
  fprintf(file, ", \"seconds\": %.9f,\n \"tcp_info\": {\"state\": \"%s\", \"options\": %u",
          seconds_of(pump), state_names[info->tcpi_state], info->tcpi_options);
  fprintf(file, ", \"snd_wscale\": %u, \"rcv_wscale\": %u", info->tcpi_snd_wscale,
          info->tcpi_rcv_wscale);
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    fprintf(file, ", \"%s\": %" PRIu32, fields[i].name, value_of(info, &fields[i]));
  }
  fprintf(file, "},\n \"counters\": {");
  const char *comma = "";
  for (int i = 0; i < HARP_COUNTERS; i++) {
    comma = write_counter(file, comma, harp_counter_info[i].name, counters[i]);
  }
  for (int i = 0; i < HARP_COUNTER_ALIASES; i++) {
    const struct harp_counter_alias *alias = &harp_counter_aliases[i];
    comma = write_counter(file, comma, alias->name, counters[alias->counter]);
  }
  fprintf(file, "}}\n");
}

static int write_file(const struct nc_pump *pump, const uint64_t *counters, int status)
{
  const char *path = pump->nc->options->json;
  FILE *file = fopen(path, "we");
  bool good = file != NULL;
  if (good) {
    write_json(file, pump, counters, status);
    good = !ferror(file);
    good &= fclose(file) == 0;
  }
  return good ? NC_WELL
              : nc_fail("%s: cannot be written: %s; give --json a file that can", path,
                        strerror(errno));
}

int nc_report(struct nc_pump *pump, int status)
{
  struct harp_instance *instance = pump->nc->instance;
  const uint64_t *counters = harp_stack_counters(instance->stack);
  instance->port->ops->count(instance->port, instance->queue, instance->counters);
  if (pump->nc->options->verbose) {
    print_line(pump, counters);
  }
  return pump->nc->options->json ? write_file(pump, counters, status) : NC_WELL;
}
