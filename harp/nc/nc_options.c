/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "harp/nc/nc.h"
#include "harp/parse_number.h"

enum long_option { DEVICE = 256, ADDRESS, GATEWAY, MTU, CONF, JSON };

static const struct option long_options[] = {
    {"listen", no_argument, NULL, 'l'},
    {"device", required_argument, NULL, DEVICE},
    {"address", required_argument, NULL, ADDRESS},
    {"gateway", required_argument, NULL, GATEWAY},
    {"mtu", required_argument, NULL, MTU},
    {"conf", required_argument, NULL, CONF},
    {"local-port", required_argument, NULL, 'p'},
    {"timeout", required_argument, NULL, 'w'},
    {"verbose", no_argument, NULL, 'v'},
    {"json", required_argument, NULL, JSON},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static const char help[] =
    "Usage: harp nc [options] HOST PORT     connect\n"
    "       harp nc -l [options] PORT       accept one connection\n"
    "Sends standard input to the peer and writes the peer's data to standard output, over\n"
    "HARP's own TCP. Closes the sending side at the end of standard input. Ends when the peer\n"
    "has closed its side too and every byte is acknowledged.\n"
    "\n"
    "  -l, --listen            wait for a peer\n"
    "  --device DEVICE         packet:IFACE, xdp:IFACE, dpdk:PCI-ID, wire:PATH or\n"
    "                          fault:SPEC|DEVICE\n"
    "  --address ADDRESS       A.B.C.D/N of HARP's own, or kernel: the interface's (packet\n"
    "                          and xdp)\n"
    "  --gateway A.B.C.D       next hop outside the prefix (the kernel's route)\n"
    "  --mtu BYTES             largest IPv4 packet (the device's)\n"
    "  --conf FILE             a ztcp*.conf instead of these four; without either, the file\n"
    "                          that a job would claim\n"
    "  -p, --local-port PORT   the port on this side (any)\n"
    "  -N                      no effect: the sending side always closes at end of input\n"
    "  -w, --timeout SECONDS   give up after this time without a connection or progress\n"
    "  -v, --verbose           describe the connection in the format of `ss -ti`\n"
    "  --json FILE             write the same as JSON, with all counters that are not 0\n"
    "\n"
    "Exit: 0 all bytes went both ways, 1 failure, 2 wrong usage.\n";

int nc_fail(const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  fputs("harp nc: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  return NC_FAILED;
}

static int usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

static int usage(const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  fputs("harp nc: ", stderr);
  vfprintf(stderr, format, arguments);
  fputs("; see harp nc --help\n", stderr);
  va_end(arguments);
  return NC_USAGE;
}

static int set_port(const char *what, const char *text, uint16_t *port)
{
  long value;
  if (!parse_number(text, 1, 65535, &value)) {
    return usage("%s '%s': give a port number from 1 to 65535", what, text);
  }
  *port = (uint16_t)value;
  return -1;
}

static int set_timeout(struct nc_options *options, const char *text)
{
  long value;
  if (!parse_number(text, 1, 1000000, &value)) {
    return usage("-w '%s': give whole seconds from 1 to 1000000", text);
  }
  options->timeout_s = (unsigned)value;
  return -1;
}

static int set_option(struct nc_options *options, int option, const char *text)
{
  switch (option) {
  case 'l': options->listen = true; return -1;
  case 'v': options->verbose = true; return -1;
  case 'N': return -1;
  case 'p': return set_port("-p", text, &options->local_port);
  case 'w': return set_timeout(options, text);
  case DEVICE: options->device = text; return -1;
  case ADDRESS: options->address = text; return -1;
  case GATEWAY: options->gateway = text; return -1;
  case MTU: options->mtu = text; return -1;
  case CONF: options->conf = text; return -1;
  case JSON: options->json = text; return -1;
  case 'h': fputs(help, stdout); return NC_WELL;
  default: return NC_USAGE; /* getopt has printed the reason */
  }
}

static int set_operands(struct nc_options *options, int count, char **operands)
{
  if (!options->listen) {
    if (count != 2) {
      return usage("to connect give HOST and PORT, or -l to wait for a peer");
    }
    options->host = operands[0];
    return set_port("port", operands[1], &options->port);
  }
  if (count > 1 || (count == 1) == (options->local_port != 0)) {
    return usage("with -l give one port, as in -l 5000 or -l -p 5000");
  }
  return count ? set_port("port", operands[0], &options->local_port) : -1;
}

static int check_source(const struct nc_options *options)
{
  bool parts = options->address || options->gateway || options->mtu;
  if (options->conf && (options->device || parts)) {
    return usage("--conf %s cannot be used with --device, --address, --gateway or --mtu: give one "
                 "or the other",
                 options->conf);
  }
  if (parts && !options->device) {
    return usage("--address, --gateway and --mtu need --device");
  }
  return -1;
}

int nc_options_parse(struct nc_options *options, int argc, char **argv)
{
  static char name[] = "harp nc";
  *options = (struct nc_options){0};
  argv[0] = name; /* for getopt's own messages */
  int option, status = -1;
  while (status < 0 && (option = getopt_long(argc, argv, "lp:Nw:vh", long_options, NULL)) != -1) {
    status = set_option(options, option, optarg);
  }
  if (status < 0) {
    status = set_operands(options, argc - optind, argv + optind);
  }
  return status < 0 ? check_source(options) : status;
}
