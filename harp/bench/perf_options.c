/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/bench/perf_options.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harp/bench/operation.h"
#include "harp/bench/slurm.h"
#include "harp/parse_number.h"

enum { WRONG_USAGE = 2, DEFAULT_TIMEOUT_S = 90 };
static const char default_port[] = "29411";

enum long_option {
  OUTSTANDING = 256,
  STEP,
  CHANNELS,
  DATATYPE,
  RATE,
  REST,
  SIZES,
  VERIFIED_ITERATIONS,
  PLUGIN,
  API,
  KERNEL,
  NSOCKS,
  KERNEL_CC,
  RANK,
  NRANKS,
  RENDEZVOUS,
  JSON,
  VERIFIED,
  HUGEPAGES,
  PAUSE,
  INJECT_WRONG,
  TIMEOUT,
  WIRE_NAME,
  TRANSPORT_NAME,
  DIRECTION,
  OFFLOADS,
  FLOWS,
  MTU,
  PAIR,
};

static const struct option long_options[] = {
    {"min", required_argument, NULL, 'b'},
    {"max", required_argument, NULL, 'e'},
    {"factor", required_argument, NULL, 'f'},
    {"iterations", required_argument, NULL, 'n'},
    {"warmup", required_argument, NULL, 'w'},
    {"outstanding", required_argument, NULL, OUTSTANDING},
    {"step", required_argument, NULL, STEP},
    {"channels", required_argument, NULL, CHANNELS},
    {"datatype", required_argument, NULL, DATATYPE},
    {"rate", required_argument, NULL, RATE},
    {"rest", no_argument, NULL, REST},
    {"sizes", required_argument, NULL, SIZES},
    {"verified-iterations", required_argument, NULL, VERIFIED_ITERATIONS},
    {"plugin", required_argument, NULL, PLUGIN},
    {"api", required_argument, NULL, API},
    {"kernel", no_argument, NULL, KERNEL},
    {"nsocks", required_argument, NULL, NSOCKS},
    {"kernel-cc", required_argument, NULL, KERNEL_CC},
    {"rank", required_argument, NULL, RANK},
    {"nranks", required_argument, NULL, NRANKS},
    {"rendezvous", required_argument, NULL, RENDEZVOUS},
    {"json", required_argument, NULL, JSON},
    {"verified", no_argument, NULL, VERIFIED},
    {"hugepages", no_argument, NULL, HUGEPAGES},
    {"pause", required_argument, NULL, PAUSE},
    {"inject-wrong", no_argument, NULL, INJECT_WRONG},
    {"timeout", required_argument, NULL, TIMEOUT},
    {"wire-name", required_argument, NULL, WIRE_NAME},
    {"transport-name", required_argument, NULL, TRANSPORT_NAME},
    {"label-direction", required_argument, NULL, DIRECTION},
    {"label-offloads", required_argument, NULL, OFFLOADS},
    {"flows", required_argument, NULL, FLOWS},
    {"label-mtu", required_argument, NULL, MTU},
    {"label-pair", required_argument, NULL, PAIR},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static const char help[] =
    "Usage: harp-perf OP [options]\n"
    "Drives an NCCL net plugin as NCCL's proxy does, and measures it.\n"
    "OP: all_reduce, reduce_scatter, all_gather, broadcast (from rank 0), all_to_all,\n"
    "  sendrecv (rank 0 to 1), sendrecv_bidir, pingpong (full round trips),\n"
    "  mixed (both ways; each message has a random size up to -e, mostly small)\n"
    "\n"
    "  -b, --min SIZE           smallest message, bytes, or with K, M, G (8)\n"
    "  -e, --max SIZE           largest message (64M)\n"
    "  -f, --factor N           each size is N times the previous one (2)\n"
    "  -n, --iterations N       iterations of each pass, timed or verified (20)\n"
    "  -w, --warmup N           iterations before the clock starts (5)\n"
    "  --sizes SIZE[:N[:W]],... these sizes instead of -b, -e and -f; N and W instead of -n, -w\n"
    "  --verified-iterations N  iterations of verified passes, at most those of timed ones\n"
    "  --outstanding N          outstanding requests (rings 4, else 8)\n"
    "  --step SIZE              cut larger messages into steps (rings 1M, else 128K)\n"
    "  --channels N             rings that divide messages, of rings and sendrecv; ring i uses\n"
    "                           device i, modulo the number of devices (1)\n"
    "  --datatype TYPE          of all_reduce and reduce_scatter: int32, uint32, int64, uint64,\n"
    "                           float32 or float64 (uint32)\n"
    "  --rate GBIT              offer at most GBIT Gbit/s\n"
    "  --rest                   with --rate and sendrecv: sleep between messages, as NCCL's\n"
    "                           progress thread does between operations\n"
    "  --plugin PATH            a libnccl-net.so (HARP's)\n"
    "  --api N                  version of its interface, 4 to 12 (the highest it has)\n"
    "  --flows N                HARP's TCP connections per link (those of its configuration)\n"
    "  --kernel                 the reference plugin over kernel TCP instead\n"
    "  --nsocks N               its sockets per link: 1, 2 or 4 (1)\n"
    "  --kernel-cc NAME         its congestion control (cubic)\n"
    "  --rank R --nranks N --rendezvous HOST:PORT\n"
    "                           or by mpirun, torchrun or srun; rank 0 listens there\n"
    "  --json FILE              rank 0 writes the records (harp.perf/1)\n"
    "  --verified               only verify, time nothing; mixed never times\n"
    "  --hugepages              put the messages in hugepages of 2 MiB\n"
    "  --pause MS               SIGUSR1 delays the next verified iteration of a ring by MS\n"
    "  --inject-wrong           flip one received byte of each size before it is verified\n"
    "  --timeout SECONDS        longest wait for any progress (90)\n"
    "  --wire-name, --transport-name, --label-direction, --label-offloads TEXT;\n"
    "  --label-mtu, --label-pair N\n"
    "                           labels in the records; they change nothing else\n"
    "\n"
    "Exit: 0 success, 1 failure or wrong bytes, 2 wrong usage.\n";

static int usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

static int usage(const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  fputs("harp perf: ", stderr);
  vfprintf(stderr, format, arguments);
  fputs("\nTry harp perf --help.\n", stderr);
  va_end(arguments);
  return WRONG_USAGE;
}

/* "64K" in bytes; the suffixes are powers of 1024, as in nccl-tests. */
static bool parse_size(const char *text, size_t *size)
{
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  unsigned shift = 0;
  if (errno || end == text || *text == '-') {
    return false;
  }
  if (*end) {
    const char *suffix = strchr("KkMmGg", *end);
    if (!suffix || end[1]) {
      return false;
    }
    shift = 10 * (unsigned)((suffix - "KkMmGg") / 2 + 1);
  }
  if (value > ((unsigned long long)1 << 40) >> shift) {
    return false;
  }
  *size = (size_t)(value << shift);
  return true;
}

static int set_int(const char *name, const char *text, long low, long high, int *out)
{
  long value;
  if (!parse_number(text, low, high, &value)) {
    return usage("%s %s: give a whole number from %ld to %ld", name, text, low, high);
  }
  *out = (int)value;
  return -1;
}

static int set_unsigned(const char *name, const char *text, long low, long high, unsigned *out)
{
  int value = 0;
  int status = set_int(name, text, low, high, &value);
  *out = (unsigned)value;
  return status;
}

static int set_size(const char *name, const char *text, size_t *out)
{
  if (!parse_size(text, out)) {
    return usage("%s %s: give bytes, at most 1024G, like 8, 64K, 4M", name, text);
  }
  return -1;
}

/* SIZE[:N[:W]]. Splits text in place. Iterations and warm-up that are not given stay UINT_MAX. */
static bool parse_sized(char *text, struct sized *sized)
{
  char *size = strsep(&text, ":"), *iterations = strsep(&text, ":"), *warmup = strsep(&text, ":");
  long count = UINT_MAX, first = UINT_MAX;
  if (text || !parse_size(size, &sized->size) ||
      (iterations && !parse_number(iterations, 1, 1000000000, &count)) ||
      (warmup && !parse_number(warmup, 0, 10000000, &first))) {
    return false;
  }
  sized->iterations = (unsigned)count;
  sized->warmup = (unsigned)first;
  return true;
}

static int set_sizes(char *text, struct options *options)
{
  options->size_count = 0;
  for (char *word; (word = strsep(&text, ","));) {
    if (options->size_count == OPTIONS_MAX_SIZES) {
      return usage("--sizes: give at most %d", OPTIONS_MAX_SIZES);
    }
    if (!parse_sized(word, &options->sizes[options->size_count++])) {
      return usage("--sizes: give sizes like 8:1000:100,64K: bytes, iterations, and iterations to "
                   "warm up");
    }
  }
  return -1;
}

static int set_rate(const char *text, double *out)
{
  char *end;
  *out = strtod(text, &end);
  if (end == text || *end || !(*out > 0) || *out > 1e6) {
    return usage("--rate %s: give Gbit/s, more than 0", text);
  }
  return -1;
}

/* HOST:PORT, with an IPv6 address in brackets, or unix:PATH. Splits text in place. */
static int set_rendezvous(char *text, struct options *options)
{
  char *colon = strrchr(text, ':');
  if (!colon || colon == text || !colon[1]) {
    return usage("--rendezvous %s: give HOST:PORT or unix:PATH", text);
  }
  *colon = '\0';
  options->port = colon + 1;
  if (*text == '[' && colon[-1] == ']') {
    colon[-1] = '\0';
    text++;
  }
  options->host = text;
  return -1;
}

static int set_nsocks(const char *text, int *out)
{
  int status = set_int("--nsocks", text, 1, 4, out);
  return status < 0 && *out == 3 ? usage("--nsocks 3: give 1, 2 or 4") : status;
}

static int set_plugin(const char *text, struct options *options)
{
  if (strlen(text) >= sizeof(options->plugin)) {
    return usage("--plugin: the path is longer than %zu bytes", sizeof(options->plugin) - 1);
  }
  strcpy(options->plugin, text);
  return -1;
}

static int set_datatype(const char *text, struct options *options)
{
  options->datatype = datatype_find(text);
  return options->datatype ? -1
                           : usage("--datatype %s: give int32, uint32, int64, uint64, float32 or "
                                   "float64",
                                   text);
}

static int set_timeout(const char *text, struct options *options)
{
  int status = set_int("--timeout", text, 1, 3600, &options->timeout_ms);
  options->timeout_ms *= 1000;
  return status;
}

static int set_text(const char *text, const char **out)
{
  *out = text;
  return -1;
}

static int set_flag(bool *flag)
{
  *flag = true;
  return -1;
}

static int set_option(struct options *options, int option, char *text)
{
  switch (option) {
  case 'b': return set_size("-b", text, &options->min_size);
  case 'e': return set_size("-e", text, &options->max_size);
  case 'f': return set_unsigned("-f", text, 2, 1 << 30, &options->factor);
  case 'n': return set_unsigned("-n", text, 1, 1000000000, &options->iterations);
  case 'w': return set_unsigned("-w", text, 0, 10000000, &options->warmup);
  case OUTSTANDING:
    return set_unsigned("--outstanding", text, 1, PUMP_MAX_OUTSTANDING, &options->outstanding);
  case STEP: return set_size("--step", text, &options->step);
  case CHANNELS:
    return set_unsigned("--channels", text, 1, OPTIONS_MAX_CHANNELS, &options->channels);
  case DATATYPE: return set_datatype(text, options);
  case RATE: return set_rate(text, &options->rate_gbit);
  case REST: return set_flag(&options->rests);
  case SIZES: return set_sizes(text, options);
  case VERIFIED_ITERATIONS:
    return set_unsigned("--verified-iterations", text, 1, 1000000000,
                        &options->verified_iterations);
  case PLUGIN: return set_plugin(text, options);
  case API: return set_int("--api", text, NETAPI_FIRST, NETAPI_LAST, &options->api);
  case KERNEL: return set_flag(&options->kernel);
  case NSOCKS: return set_nsocks(text, &options->nsocks);
  case KERNEL_CC: return set_text(text, &options->kernel_cc);
  case RANK: return set_int("--rank", text, 0, 65535, &options->rank);
  case NRANKS: return set_int("--nranks", text, 2, 65536, &options->ranks);
  case RENDEZVOUS: return set_rendezvous(text, options);
  case JSON: return set_text(text, &options->json);
  case VERIFIED: return set_flag(&options->verified);
  case HUGEPAGES: return set_flag(&options->hugepages);
  case PAUSE: return set_int("--pause", text, 1, 3600000, &options->pause_ms);
  case INJECT_WRONG: return set_flag(&options->inject_wrong);
  case TIMEOUT: return set_timeout(text, options);
  case WIRE_NAME: return set_text(text, &options->wire);
  case TRANSPORT_NAME: return set_text(text, &options->transport);
  case DIRECTION: return set_text(text, &options->direction);
  case OFFLOADS: return set_text(text, &options->offloads);
  case FLOWS: return set_int("--flows", text, 1, 16, &options->flows);
  case MTU: return set_int("--label-mtu", text, 576, 65535, &options->mtu);
  case PAIR: return set_int("--label-pair", text, 0, INT_MAX, &options->pair);
  case 'h': fputs(help, stdout); return 0;
  default: /* getopt_long has printed the reason */
    return usage("unknown option, or its value is missing");
  }
}

/* Environment variables of launchers for the rank and the number of ranks. */
static const struct launcher {
  const char *rank, *ranks;
} launchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"RANK", "WORLD_SIZE"},
    {"PMI_RANK", "PMI_SIZE"},
    {"SLURM_PROCID", "SLURM_NTASKS"},
};

static void ask_launcher(struct options *options)
{
  for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
    const char *rank = getenv(launchers[i].rank), *ranks = getenv(launchers[i].ranks);
    long value, count;
    if (rank && ranks && parse_number(rank, 0, 65535, &value) &&
        parse_number(ranks, 2, 65536, &count)) {
      if (options->rank < 0) {
        options->rank = (int)value;
      }
      if (!options->ranks) {
        options->ranks = (int)count;
      }
      return;
    }
  }
}

/* torchrun's own store listens on MASTER_PORT, so HARP uses the next port. */
static const char *port_after(const char *text)
{
  static char port[24]; /* room for any long */
  long value;
  if (!text || !parse_number(text, 1, 65534, &value)) {
    return default_port;
  }
  snprintf(port, sizeof(port), "%ld", value + 1);
  return port;
}

static int ask_for_rendezvous(struct options *options)
{
  static char node[256];
  const char *here = slurm_this_node();
  options->host = getenv("MASTER_ADDR");
  options->port = port_after(getenv("MASTER_PORT"));
  if (options->host || !slurm_first_node(options->rank, options->ranks, node, sizeof(node))) {
    return -1;
  }
  if (options->rank == 0 && here && strcmp(here, node) != 0) {
    return usage("Slurm started rank 0 on %s and not on %s, the first node: set MASTER_ADDR to an "
                 "address of %s",
                 here, node, here);
  }
  options->host = node;
  options->host_is_node = true;
  return -1;
}

static int check_ranks(struct options *options)
{
  ask_launcher(options);
  if (options->rank < 0 || !options->ranks) {
    return usage("the rank is unknown: give --rank and --nranks, or start it by mpirun, torchrun "
                 "or srun");
  }
  if (options->rank >= options->ranks) {
    return usage("--rank %d of %d ranks: ranks count from 0", options->rank, options->ranks);
  }
  int status = options->host ? -1 : ask_for_rendezvous(options);
  if (status < 0 && !options->host) {
    return usage("the rendezvous is unknown: give --rendezvous HOST:PORT, or set MASTER_ADDR to an "
                 "address of rank 0's host");
  }
  return status;
}

/* Fills the list of sizes from -b, -e and -f, and gaps of --sizes from -n and -w. Needs the number
 * of ranks. */
static void make_sizes(struct options *options, const struct operation *operation)
{
  size_t size = options->min_size;
  bool listed = options->size_count > 0;
  while (!listed && size <= options->max_size && options->size_count < OPTIONS_MAX_SIZES) {
    options->sizes[options->size_count++] = (struct sized){size, UINT_MAX, UINT_MAX};
    size = size ? size * options->factor : options->datatype->size;
  }
  options->max_size = 0;
  for (unsigned i = 0; i < options->size_count; i++) {
    struct sized *sized = &options->sizes[i];
    if (sized->iterations == UINT_MAX) {
      sized->iterations = options->iterations;
    }
    if (sized->warmup == UINT_MAX) {
      sized->warmup = options->warmup;
    }
    sized->size = operation_fit(operation, options->datatype, options->ranks, sized->size);
    if (sized->size > options->max_size) {
      options->max_size = sized->size;
    }
  }
}

static int check_operation(const struct options *options)
{
  const struct operation *operation = operation_find(options->op);
  if (operation->ranks && options->ranks != operation->ranks) {
    return usage("%s needs %d ranks, not %d", options->op, operation->ranks, options->ranks);
  }
  if (options->channels > 1 && !operation->divides) {
    return usage("--channels %u: %s does not divide messages", options->channels, options->op);
  }
  if (operation->pairwise && options->ranks - 1 > OPTIONS_MAX_CHANNELS) {
    return usage("%s is for at most %d ranks, not %d", options->op, OPTIONS_MAX_CHANNELS + 1,
                 options->ranks);
  }
  return -1;
}

static int check_sizes(const struct options *options)
{
  const struct datatype *datatype = options->datatype;
  size_t unit = operation_unit(datatype);
  if (options->step % unit) {
    return usage("--step %zu: give a multiple of %zu bytes", options->step, unit);
  }
  for (unsigned i = 0; i < options->size_count; i++) {
    if (options->sizes[i].size % datatype->size) {
      return usage("a message of %zu bytes: %s adds up elements of %zu bytes (%s); correct -b, -e, "
                   "-f or --sizes",
                   options->sizes[i].size, options->op, datatype->size, datatype->name);
    }
  }
  return -1;
}

/* Completes the options by what the operation and the ranks decide. */
static int complete(struct options *options, const struct operation *operation)
{
  int status = check_operation(options);
  if (status >= 0) {
    return status;
  }
  if (operation->pairwise) {
    options->channels = (unsigned)options->ranks - 1;
  }
  if (!options->datatype) {
    options->datatype = operation->datatype;
  }
  make_sizes(options, operation);
  return check_sizes(options);
}

static int check(struct options *options)
{
  const struct operation *operation = operation_find(options->op);
  if (!operation) {
    return usage("unknown operation %s: choose one of %s", options->op, operation_names());
  }
  if (options->datatype && !operation->reduces) {
    return usage("--datatype is for all_reduce and reduce_scatter; %s moves bytes", options->op);
  }
  if (options->min_size > options->max_size) {
    return usage("-b is larger than -e");
  }
  if (options->rests && (options->rate_gbit == 0 || strncmp(options->op, "sendrecv", 8) != 0)) {
    return usage("--rest needs --rate, and sendrecv or sendrecv_bidir");
  }
  if ((options->nsocks || options->kernel_cc) && !options->kernel) {
    return usage("--nsocks and --kernel-cc need --kernel");
  }
  if (options->kernel && options->flows) {
    return usage("--flows is for HARP's plugin: with --kernel use --nsocks");
  }
  if (options->kernel && options->plugin[0]) {
    return usage("--kernel and --plugin both name a plugin: give one");
  }
  int status = check_ranks(options);
  return status < 0 ? complete(options, operation) : status;
}

/* Returns true if folder/name exists; stores its canonical path in out. */
static bool plugin_at(const char *folder, const char *name, char *out)
{
  char path[2 * PATH_MAX];
  snprintf(path, sizeof(path), "%s/%s", folder, name);
  return realpath(path, out) != NULL;
}

/* The plugin lies beside this program, both in the build folder and in an installation. */
static int find_plugin(struct options *options)
{
  const char *const built = options->kernel ? "kernel/libnccl-net-kernel.so"
                                            : "../../plugin/libnccl-net.so";
  const char *const installed = options->kernel ? "libnccl-net-kernel.so" : "libnccl-net-harp.so";
  char folder[PATH_MAX] = "";
  ssize_t length = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
  char *slash = length > 0 ? strrchr(folder, '/') : NULL;
  if (slash) {
    *slash = '\0';
  }
  if (plugin_at(folder, built, options->plugin) || plugin_at(folder, installed, options->plugin)) {
    return -1;
  }
  return usage("neither %s nor %s is beside harp-perf in %s: build it, or name one by --plugin",
               built, installed, folder);
}

int options_parse(struct options *options, int argc, char **argv)
{
  const char *debug = getenv("NCCL_DEBUG");
  int option;
  *options = (struct options){
      .min_size = 8,
      .max_size = 64 << 20,
      .factor = 2,
      .iterations = 20,
      .warmup = 5,
      .channels = 1,
      .rank = -1,
      .pair = -1,
      .timeout_ms = DEFAULT_TIMEOUT_S * 1000,
      .debug = getenv("HARP_DEBUG") || (debug && strcmp(debug, "INFO") == 0),
  };
  while ((option = getopt_long(argc, argv, "b:e:f:n:w:h", long_options, NULL)) != -1) {
    int status = set_option(options, option, optarg);
    if (status >= 0) {
      return status;
    }
  }
  if (optind + 1 != argc) {
    return usage(optind == argc ? "name an operation: one of %s" : "name one operation, of %s",
                 operation_names());
  }
  options->op = argv[optind];
  int status = check(options);
  if (status < 0 && !options->plugin[0]) {
    status = find_plugin(options);
  }
  return status;
}
