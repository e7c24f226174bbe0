/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/attacker/attacker.h"
#include "tools/attacker/forwarder.h"

enum { LINE = 1024, ARGS_MOST = 32, NAP_MS = 100 };

static const uint8_t own_mac[6] = {2, 0x77, 0, 0, 0, 0x66};

static struct forward_state {
  struct flood flood;
  uint32_t address; /* of the victim */
  bool hello_seen;  /* a hello to the address was printed */
} state;

/* Frames for the attacker are not forwarded. */
static bool seen(void *user, enum forwarder_end from, const struct harp_rx_frame *frame)
{
  if (from == FORWARDER_VICTIM) {
    frame_seen(&state.flood, frame->header, frame->header_length);
    return frame->header_length < 6 || memcmp(frame->header, own_mac, 6) != 0;
  }
  if (!state.hello_seen) {
    state.hello_seen = hello_seen(frame->header, frame->header_length, state.address);
  }
  return true;
}

/* Runs the attack that line names. Returns false if there is no such attack, or if it failed. */
static bool attack(struct forwarder *forwarder, char *line)
{
  char *args[ARGS_MOST + 1] = {0}, *left = NULL;
  char *name = strtok_r(line, " \n", &left);
  const struct attack *which = name ? attack_named(name) : NULL;
  for (int i = 0; i < ARGS_MOST && (args[i] = strtok_r(NULL, " \n", &left)); i++)
    ;
  memset(&state.flood, 0, sizeof state.flood);
  state.flood.forwarder = forwarder;
  memcpy(state.flood.mac, own_mac, sizeof own_mac);
  return which && flood_from_args(&state.flood, which, args) && flood_run(&state.flood, which) == 0;
}

/* Reads one line of standard input and runs it. Returns false at its end or on an error. */
static bool obey(struct forwarder *forwarder)
{
  char line[LINE];
  ssize_t got = read(STDIN_FILENO, line, sizeof line - 1);
  line[got > 0 ? got : 0] = '\0';
  return got > 0 && attack(forwarder, line);
}

int forward_frames(const char *victim, const char *other, uint32_t address)
{
  struct forwarder forwarder = {.seen = seen};
  char error[HARP_PORT_ERROR_SIZE];
  state.address = address;
  if (forwarder_open(&forwarder, victim, other, error) < 0) {
    fprintf(stderr, "harp-flood: %s\n", error);
    return 1;
  }
  puts("ready");
  fflush(stdout);
  for (bool alive = true; alive && !flood_stop;) {
    forwarder_pass(&forwarder);
    if (forwarder_wait(&forwarder, STDIN_FILENO, NAP_MS)) {
      alive = obey(&forwarder);
    }
  }
  forwarder_close(&forwarder);
  return 0;
}
