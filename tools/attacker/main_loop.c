/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/attacker/forwarder.h"
#include "tools/attacker/attacker.h"

enum { LINE = 1024, WORDS = 32, NAP_MS = 100 };

static const uint8_t own_mac[6] = {2, 0x77, 0, 0, 0, 0x66};

static struct middle {
  struct flood flood;
  uint32_t address; /* of the victim */
  bool heard;       /* a hello to it */
} middle;

/* What is for the attacker goes no further. */
static bool seen(void *user, enum between_end from, const struct harp_rx_frame *frame)
{
  if (from == BETWEEN_VICTIM) {
    frame_heard(&middle.flood, frame->header, frame->header_length);
    return frame->header_length < 6 || memcmp(frame->header, own_mac, 6) != 0;
  }
  if (!middle.heard)
    middle.heard = hello_heard(frame->header, frame->header_length, middle.address);
  return true;
}

/* false: no such attack, or it failed. */
static bool attack(struct between *between, char *line)
{
  char *words[WORDS + 1] = {0}, *left = NULL;
  char *name = strtok_r(line, " \n", &left);
  const struct attack *which = name ? attack_named(name) : NULL;
  for (int i = 0; i < WORDS && (words[i] = strtok_r(NULL, " \n", &left)); i++)
    ;
  memset(&middle.flood, 0, sizeof middle.flood);
  middle.flood.between = between;
  memcpy(middle.flood.mac, own_mac, sizeof own_mac);
  return which && flood_told(&middle.flood, which, words) &&
         flood_run(&middle.flood, which) == 0;
}

/* One line of standard input; false: its end, or nonsense. */
static bool obey(struct between *between)
{
  char line[LINE];
  ssize_t got = read(STDIN_FILENO, line, sizeof line - 1);
  line[got > 0 ? got : 0] = '\0';
  return got > 0 && attack(between, line);
}

int stand_between(const char *victim, const char *other, uint32_t address)
{
  struct between between = {.seen = seen};
  char error[HARP_PORT_ERROR_SIZE];
  middle.address = address;
  if (between_open(&between, victim, other, error) < 0) {
    fprintf(stderr, "harp-flood: %s\n", error);
    return 1;
  }
  puts("ready");
  fflush(stdout);
  for (bool alive = true; alive && !flood_stop;) {
    between_pass(&between);
    if (between_wait(&between, STDIN_FILENO, NAP_MS))
      alive = obey(&between);
  }
  between_close(&between);
  return 0;
}
