/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/testing/flood/flood.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

static const char usage[] =
    "Usage: harp-flood list\n"
    "       harp-flood hear IFACE ADDRESS SECONDS\n"
    "       harp-flood ATTACK IFACE KEY=VALUE...\n"
    "A host that means no good, for tests of HARP in a lab.\n"
    "\n"
    "list: the attacks, one JSON document a line.\n"
    "hear: prints \"ready\", then the first hello that comes to the address.\n"
    "ATTACK: prints \"ready\" and the time on the monotonic clock, ns, when its first frame\n"
    "leaves, and what it did to the victim at its end.\n"
    "  to=ADDRESS to_mac=MAC   the victim, where the frames go\n"
    "  nobody=ADDRESS phase_ms=N\n"
    "                          after so long they go to this address instead, and so on in turn\n"
    "  from=ADDRESS            what the attacker calls itself; no kernel may have it\n"
    "  port=N                  of the listener that is attacked\n"
    "  peer=ADDRESS peer_port=N own_port=N\n"
    "                          a connection that the victim has, for the attacks on one\n"
    "  hello=HEX               as heard\n"
    "  rate=N                  frames a second\n"
    "  ms=N                    how long\n"
    "\n"
    "Exit: 0 all well, 1 it failed, 2 wrong usage.\n";

enum { BATCH = 64, TICK_NS = 1000000, BEHIND_TICKS = 5 };

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
  stop = number;
}

static uint64_t now_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* splitmix64: every run sends the same frames. */
uint64_t flood_random(struct flood *flood)
{
  uint64_t z = flood->random += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

/* --- What to do --- */

static bool read_hex(const char *text, uint8_t *out, size_t size, const char *between)
{
  for (size_t i = 0; i < size; i++) {
    int used = 0;
    if (i && *between && *text++ != *between)
      return false;
    if (sscanf(text, "%2hhx%n", &out[i], &used) != 1 || used != 2)
      return false;
    text += 2;
  }
  return *text == '\0';
}

static bool read_number(const char *text, uint64_t most, uint64_t *out)
{
  char *end;
  errno = 0;
  *out = strtoull(text, &end, 10);
  return errno == 0 && *text >= '0' && *text <= '9' && *end == '\0' && *out <= most;
}

static bool read_port(const char *text, uint16_t *out)
{
  uint64_t value;
  bool good = read_number(text, 65535, &value);
  *out = (uint16_t)value;
  return good;
}

static bool set(struct flood *flood, const char *key, const char *value)
{
  if (strcmp(key, "to") == 0)
    return inet_pton(AF_INET, value, &flood->victim) == 1;
  if (strcmp(key, "nobody") == 0)
    return inet_pton(AF_INET, value, &flood->nobody) == 1;
  if (strcmp(key, "from") == 0)
    return inet_pton(AF_INET, value, &flood->from) == 1;
  if (strcmp(key, "peer") == 0)
    return inet_pton(AF_INET, value, &flood->peer) == 1;
  if (strcmp(key, "to_mac") == 0)
    return read_hex(value, flood->to_mac, 6, ":");
  if (strcmp(key, "hello") == 0)
    return read_hex(value, flood->hello, FLOOD_HELLO, "");
  if (strcmp(key, "port") == 0)
    return read_port(value, &flood->port);
  if (strcmp(key, "peer_port") == 0)
    return read_port(value, &flood->peer_port);
  if (strcmp(key, "own_port") == 0)
    return read_port(value, &flood->own_port);
  if (strcmp(key, "rate") == 0)
    return read_number(value, 10000000, &flood->rate) && flood->rate > 0;
  if (strcmp(key, "ms") == 0)
    return read_number(value, 3600000, &flood->ms) && flood->ms > 0;
  if (strcmp(key, "phase_ms") == 0)
    return read_number(value, 3600000, &flood->phase_ms) && flood->phase_ms > 0;
  return false;
}

static bool set_all(struct flood *flood, char **words)
{
  for (; *words; words++) {
    char *equals = strchr(*words, '=');
    if (equals)
      *equals = '\0';
    if (!equals || !set(flood, *words, equals + 1)) {
      fprintf(stderr, "harp-flood: %s: no such key, or a bad value; harp-flood --help\n", *words);
      return false;
    }
  }
  if (flood->victim && flood->from && flood->port && flood->rate && flood->ms &&
      !flood->nobody == !flood->phase_ms)
    return true;
  fprintf(stderr, "harp-flood: to, from, port, rate and ms are needed, and both of nobody and "
                  "phase_ms or neither; harp-flood --help\n");
  return false;
}

/* --- The pace --- */

/* Visitors wait in a ring in the order of their last frames, which is that of their next
 * ones but for the moment between a first and a second frame. Their places in it are their
 * places in flood->visitors. */
struct crowd {
  uint64_t first, next; /* modulo FLOOD_VISITORS */
};

static struct visitor *welcome(struct flood *flood, struct crowd *crowd)
{
  uint32_t place = (uint32_t)(crowd->next++ % FLOOD_VISITORS);
  struct visitor *visitor = &flood->visitors[place];
  uint16_t port = (uint16_t)(1024 + flood->visits++ % 60000);
  flood->count.connections += flood->to == flood->victim;
  *visitor = (struct visitor){.port = port, .seq = (uint32_t)flood_random(flood)};
  flood->by_port[port] = place + 1;
  return visitor;
}

/* One whom the victim has just answered, and who has said nothing since; NULL: nobody. */
static struct visitor *answered(struct flood *flood)
{
  while (flood->answered_count > 0) {
    struct visitor *visitor = &flood->visitors[flood->answered[--flood->answered_count]];
    if (visitor->answered && visitor->step == 1)
      return visitor;
  }
  return NULL;
}

/* Who is to send the next frame; NULL: nobody yet. Whoever has waited long enough goes to
 * the ring's end with it. */
static struct visitor *whose_turn(struct flood *flood, struct crowd *crowd,
                                  const struct attack *attack, uint64_t now)
{
  struct visitor *found = attack->steps > 1 ? answered(flood) : NULL;
  if (found)
    return found;
  while (crowd->first < crowd->next &&
         flood->visitors[crowd->first % FLOOD_VISITORS].step == attack->steps)
    crowd->first++;
  struct visitor *oldest = &flood->visitors[crowd->first % FLOOD_VISITORS];
  if (crowd->first < crowd->next && oldest->due_ns <= now) {
    uint32_t place = (uint32_t)(crowd->next % FLOOD_VISITORS);
    struct visitor *moved = &flood->visitors[place];
    crowd->first++;
    crowd->next++;
    *moved = *oldest;
    flood->by_port[moved->port] = place + 1;
    return moved;
  }
  return crowd->next - crowd->first < FLOOD_VISITORS - 1 ? welcome(flood, crowd) : NULL;
}

static int send_frames(struct flood *flood, struct crowd *crowd, const struct attack *attack,
                       uint64_t quota, uint64_t now)
{
  static uint8_t frames[BATCH][FLOOD_FRAME];
  struct iovec parts[BATCH];
  struct mmsghdr messages[BATCH];
  while (quota > 0) {
    unsigned count = 0;
    memset(messages, 0, sizeof messages);
    for (; count < BATCH && count < quota; count++) {
      struct visitor *visitor = whose_turn(flood, crowd, attack, now);
      if (!visitor)
        break;
      parts[count].iov_base = frames[count];
      parts[count].iov_len = attack->frame(flood, visitor, frames[count]);
      messages[count].msg_hdr.msg_iov = &parts[count];
      messages[count].msg_hdr.msg_iovlen = 1;
      visitor->due_ns = now + (visitor->step ? FLOOD_NEXT_NS : FLOOD_ANSWER_NS);
      visitor->step++;
    }
    if (count == 0)
      return 0;
    int sent = sendmmsg(flood->fd, messages, count, 0);
    if (sent < 0)
      return -errno;
    flood->count.frames += (unsigned)sent;
    quota -= count;
  }
  return 0;
}

static void listen_to_answers(struct flood *flood)
{
  uint8_t frame[FLOOD_FRAME];
  for (int i = 0; i < 4 * BATCH; i++) {
    ssize_t length = recv(flood->fd, frame, sizeof frame, MSG_DONTWAIT);
    if (length <= 0)
      return;
    frame_heard(flood, frame, (size_t)length);
  }
}

/* With the address all visitors change: what is unfinished stays so. */
static void begin_phase(struct flood *flood, struct crowd *crowd, uint64_t elapsed_ns)
{
  bool odd = flood->nobody && elapsed_ns / (flood->phase_ms * 1000000) % 2;
  uint32_t to = odd ? flood->nobody : flood->victim;
  if (to != flood->to) {
    *crowd = (struct crowd){0};
    flood->answered_count = 0;
    memset(flood->by_port, 0, sizeof flood->by_port);
  }
  flood->to = to;
}

static void report(const struct flood *flood, uint64_t took_ns)
{
  printf("{\"frames\": %" PRIu64 ", \"seconds\": %.3f, \"connections\": %" PRIu64
         ", \"answered\": %" PRIu64 ", \"resets\": %" PRIu64 ", \"arp_answers\": %" PRIu64 "}\n",
         flood->count.frames, (double)took_ns / 1e9, flood->count.connections,
         flood->count.answered, flood->count.resets, flood->count.arp);
}

/* Frames leave at every tick. What a busy machine let slip beyond a few ticks is given up:
 * the rate is a bound, and the report tells what became of it. */
static int run(struct flood *flood, const struct attack *attack)
{
  struct crowd crowd = {0};
  uint64_t began = now_ns(), end = began + flood->ms * 1000000, tick = began;
  uint64_t owed = 0; /* frames, times 10^9 */
  int result = 0;
  printf("ready %" PRIu64 "\n", began);
  fflush(stdout);
  while (!stop && result == 0 && tick < end) {
    uint64_t now = now_ns(), passed = now - tick;
    tick = now;
    owed += (passed < BEHIND_TICKS * TICK_NS ? passed : BEHIND_TICKS * TICK_NS) * flood->rate;
    listen_to_answers(flood);
    begin_phase(flood, &crowd, now - began);
    result = send_frames(flood, &crowd, attack, owed / 1000000000u, now);
    owed %= 1000000000u;
    struct timespec pause = {.tv_nsec = TICK_NS};
    nanosleep(&pause, NULL);
  }
  report(flood, now_ns() - began);
  return result;
}

/* It stands for another machine: what runs beside it on this one must not slow it. */
static void take_precedence(void)
{
  struct sched_param least = {.sched_priority = 1};
  sched_setscheduler(0, SCHED_RR, &least); /* without the right to it, it is slower */
}

static int attack_as_told(const struct attack *attack, const char *interface, char **words)
{
  static struct flood flood = {.random = 1};
  if (!set_all(&flood, words))
    return 2;
  if (attack->live && !(flood.peer && flood.peer_port && flood.own_port)) {
    fprintf(stderr, "harp-flood: %s needs peer, peer_port and own_port\n", attack->name);
    return 2;
  }
  flood.fd = flood_open(interface, flood.mac);
  if (flood.fd < 0)
    return 1;
  take_precedence();
  int result = run(&flood, attack);
  if (result < 0)
    fprintf(stderr, "harp-flood: %s: frames cannot be sent: %s\n", interface, strerror(-result));
  return result < 0;
}

static int list(void)
{
  for (size_t i = 0; i < attack_count; i++)
    printf("{\"name\": \"%s\", \"what\": \"%s\", \"frames\": %u}\n", attacks[i].name,
           attacks[i].what, attacks[i].steps);
  return 0;
}

static int hear_as_told(char **words)
{
  uint32_t address;
  uint64_t seconds;
  if (inet_pton(AF_INET, words[1], &address) != 1 || !read_number(words[2], 3600, &seconds)) {
    fputs(usage, stderr);
    return 2;
  }
  return hear(words[0], address, (unsigned)seconds);
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
  if (argc == 2 && strcmp(argv[1], "list") == 0)
    return list();
  if (argc == 5 && strcmp(argv[1], "hear") == 0)
    return hear_as_told(argv + 2);
  for (size_t i = 0; i < attack_count && argc > 2; i++)
    if (strcmp(argv[1], attacks[i].name) == 0)
      return attack_as_told(&attacks[i], argv[2], argv + 3);
  fputs(usage, stderr);
  return 2;
}
