/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/attacker/attacker.h"

#include <arpa/inet.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

static const char usage[] =
    "Usage: harp-flood list\n"
    "       harp-flood listen IFACE ADDRESS SECONDS\n"
    "       harp-flood ATTACK IFACE KEY=VALUE...\n"
    "       harp-flood forward VICTIM OTHER ADDRESS\n"
    "An attacking host, for tests of HARP in a lab.\n"
    "\n"
    "list: prints the attacks, one JSON document per line.\n"
    "listen: prints \"ready\", then the first hello to the address.\n"
    "forward: forwards frames between two wires, named by their paths. Prints the first hello\n"
    "to the address, then runs the attacks on standard input until that ends. A line is\n"
    "ATTACK KEY=VALUE..., as below.\n"
    "ATTACK: prints \"ready\" and the time of its first frame (monotonic clock, ns), and a report\n"
    "at its end.\n"
    "  to=ADDRESS to_mac=MAC   the victim, the target of the frames\n"
    "  nobody=ADDRESS phase_ms=N\n"
    "                          switch between the victim and this address after each N ms\n"
    "  from=ADDRESS            the attacker's address; no kernel may have it\n"
    "  port=N                  of the attacked listener\n"
    "  peer=ADDRESS peer_port=N own_port=N\n"
    "                          an existing connection of the victim, for attacks on it\n"
    "  hello=HEX               as recorded by listen\n"
    "  rate=N                  frames per second\n"
    "  ms=N                    duration\n"
    "\n"
    "Exit: 0 success, 1 failure, 2 wrong usage.\n";

static void on_signal(int number) { flood_stop = number; }

/* The attacker stands for another machine, so local processes must not slow it down. */
static void take_precedence(void)
{
  struct sched_param least = {.sched_priority = 1};
  sched_setscheduler(0, SCHED_RR, &least); /* without the privilege it runs at normal priority */
}

static int attack_from_args(const struct attack *attack, const char *interface, char **args)
{
  static struct flood flood;
  if (!flood_from_args(&flood, attack, args)) {
    return 2;
  }
  flood.fd = flood_open(interface, flood.mac);
  if (flood.fd < 0) {
    return 1;
  }
  take_precedence();
  int result = flood_run(&flood, attack);
  if (result < 0) {
    fprintf(stderr, "harp-flood: %s: cannot send frames: %s\n", interface, strerror(-result));
  }
  return result < 0;
}

static int list(void)
{
  for (size_t i = 0; i < attack_count; i++) {
    printf("{\"name\": \"%s\", \"what\": \"%s\", \"frames\": %u}\n", attacks[i].name,
           attacks[i].what, attacks[i].steps);
  }
  return 0;
}

static int rx_from_args(char **args)
{
  uint32_t address;
  uint64_t seconds;
  if (inet_pton(AF_INET, args[1], &address) != 1 || !read_number(args[2], 3600, &seconds)) {
    fputs(usage, stderr);
    return 2;
  }
  return rx(args[0], address, (unsigned)seconds);
}

static int forward_from_args(char **args)
{
  uint32_t address;
  if (inet_pton(AF_INET, args[2], &address) != 1) {
    fputs(usage, stderr);
    return 2;
  }
  return forward_frames(args[0], args[1], address);
}

int main(int argc, char **argv)
{
  struct sigaction action = {.sa_handler = on_signal};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGINT, &action, NULL);
  if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
    fputs(usage, stdout);
    return 0;
  }
  if (argc == 2 && strcmp(argv[1], "list") == 0) {
    return list();
  }
  if (argc == 5 && strcmp(argv[1], "listen") == 0) {
    return rx_from_args(argv + 2);
  }
  if (argc == 5 && strcmp(argv[1], "forward") == 0) {
    return forward_from_args(argv + 2);
  }
  const struct attack *attack = argc > 2 ? attack_named(argv[1]) : NULL;
  if (attack) {
    return attack_from_args(attack, argv[2], argv + 3);
  }
  fputs(usage, stderr);
  return 2;
}
