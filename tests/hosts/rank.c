/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a fault test: a process with a plugin, driven line by line.
 *
 * Usage: rank PLUGIN API. Each line of standard input is a command. Each command is answered by one
 * line: "ok ..." or "failed CALL CODE MS", with NCCL's code and the duration of the command in
 * milliseconds. Commands that wait have a timeout and answer "late" when it expires. The plugin's
 * log lines come before the answer, as "NCCL WARN ..." and "NCCL INFO ...".
 *
 *   init                         ok DEVICES
 *   listen [DEVICE]              ok LISTENER HANDLE
 *   connect HANDLE MS [DEVICE]   ok COMM
 *   accept LISTENER MS           ok COMM
 *   send COMM COUNT SIZE MS      COUNT messages of SIZE bytes, in a window of eight;
 *   receive COMM COUNT SIZE MS   "wrong MESSAGE" if bytes differ
 *   exchange COUNT SIZE MS COMM...   the same on several comms at a time, in both directions
 *   poll COUNT SIZE MS COMM...       the same with receives whose completion is optional; a thread
 *                                reads their buffers meanwhile: "foreign BYTES" if it saw bytes
 *                                that do not belong there
 *   close COMM                   ok MS
 *   unlisten LISTENER
 *   fork LISTENER COMM           the codes of the calls in a child that inherited both
 *   child MS [CALL WAIT]         ok CODE: forks a child that sleeps for MS, also beside CALL
 *                                (init or finalize): forks.h
 *   finalize
 *   unload                       after the last finalize
 *   load                         as at the start
 *   drop USER                    changes the user of all threads and drops all capabilities
 *   exit                         like a return from main: exit handlers run
 *   leave                        _exit: no exit handler runs
 *
 * Lines may be sent ahead. The program reads a line after it has answered the previous one.
 */
#include <grp.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harp/bench/clock.h"
#include "harp/bench/netapi.h"
#include "tests/hosts/forks.h"
#include "tests/hosts/watch.h"

enum { OBJECTS = 512, LINE = 1024, HANDLE_MOST = 128, WINDOW = 8, PERIOD = 251, STREAMS = 64 };
enum { EAGER_NS = 20 * 1000 * 1000 }; /* a wait that is longer has no message under way */

struct comm {
  void *comm;
  bool sends;
};

static struct {
  const char *plugin;
  int version;
  struct netapi api;
  void *listeners[OBJECTS];
  struct comm comms[OBJECTS];
  int listener_count, comm_count;
  uint64_t began_ns; /* start of the command */
} rank;

/* --- Answers --- */

__attribute__((format(printf, 1, 2))) static void answer(const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  vprintf(format, arguments);
  va_end(arguments);
  putchar('\n');
  fflush(stdout);
}

static double elapsed_ms(void) { return (double)(clock_ns() - rank.began_ns) / 1e6; }

static bool failed(const char *call, ncclResult_t result)
{
  if (result != ncclSuccess) {
    answer("failed %s %d %.1f", call, (int)result, elapsed_ms());
  }
  return result != ncclSuccess;
}

static void say(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                const char *format, ...) __attribute__((format(printf, 5, 6)));

static void say(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                const char *format, ...)
{
  char text[LINE];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  answer("NCCL %s %s", level <= NCCL_LOG_WARN ? "WARN" : "INFO", text);
}

static void fatal(const char *what)
{
  fprintf(stderr, "rank: %s\n", what);
  exit(2);
}

/* --- Links --- */

static void *listener_of(int number)
{
  if (number < 0 || number >= rank.listener_count) {
    fatal("no such listener");
  }
  return rank.listeners[number];
}

static struct comm *comm_of(int number)
{
  if (number < 0 || number >= rank.comm_count) {
    fatal("no such comm");
  }
  return &rank.comms[number];
}

static void do_init(const char *words)
{
  int devices = 0;
  if (failed("init", rank.api.init(say)) || failed("devices", rank.api.devices(&devices))) {
    return;
  }
  answer("ok %d", devices);
}

static void do_listen(const char *words)
{
  unsigned char handle[HANDLE_MOST] = {0};
  char text[2 * HANDLE_MOST + 1];
  void *listener = NULL;
  if (rank.listener_count == OBJECTS) {
    fatal("too many listeners");
  }
  if (failed("listen", rank.api.listen(atoi(words), handle, &listener))) {
    return;
  }
  for (size_t i = 0; i < rank.api.handle_size; i++) {
    sprintf(text + 2 * i, "%02x", handle[i]);
  }
  rank.listeners[rank.listener_count++] = listener;
  answer("ok %d %s", rank.listener_count - 1, text);
}

static void keep(void *comm, bool sends)
{
  if (rank.comm_count == OBJECTS) {
    fatal("too many comms");
  }
  rank.comms[rank.comm_count++] = (struct comm){comm, sends};
  answer("ok %d", rank.comm_count - 1);
}

static bool in_time(double limit_ms)
{
  struct timespec pause = {.tv_nsec = 100 * 1000};
  nanosleep(&pause, NULL);
  return elapsed_ms() < limit_ms;
}

static void do_connect(const char *words)
{
  unsigned char handle[HANDLE_MOST] = {0};
  char text[2 * HANDLE_MOST + 2];
  double limit_ms;
  int device = 0;
  void *comm = NULL;
  if (sscanf(words, "%257s %lf %d", text, &limit_ms, &device) < 2) {
    fatal("connect HANDLE MS [DEVICE]");
  }
  for (size_t i = 0; i < HANDLE_MOST; i++) {
    if (sscanf(text + 2 * i, "%2hhx", &handle[i]) != 1) {
      break;
    }
  }
  do {
    if (failed("connect", rank.api.connect(device, handle, &comm))) {
      return;
    }
  } while (!comm && in_time(limit_ms));
  if (comm) {
    keep(comm, true);
  } else {
    answer("late");
  }
}

static void do_accept(const char *words)
{
  int number;
  double limit_ms;
  void *comm = NULL;
  if (sscanf(words, "%d %lf", &number, &limit_ms) != 2) {
    fatal("accept LISTENER MS");
  }
  do {
    if (failed("accept", rank.api.accept(listener_of(number), &comm))) {
      return;
    }
  } while (!comm && in_time(limit_ms));
  if (comm) {
    keep(comm, false);
  } else {
    answer("late");
  }
}

/* --- Messages --- */

struct stream {
  struct comm *comm;
  struct watch *watch; /* NULL: completion is needed */
  unsigned long count, size, posted, done;
  double limit_ms;
  unsigned char *memory; /* a slot per message of the window, and the pattern */
  void *mhandle;
  void *requests[WINDOW];
};

static unsigned char *slot(const struct stream *stream, unsigned long message)
{
  return stream->memory + message % WINDOW * stream->size;
}

/* Byte i of a message is (message + i) modulo a prime. So each message is a part of one periodic
 * text, which is stored after the slots. */
static const unsigned char *expected(const struct stream *stream, unsigned long message)
{
  return stream->memory + WINDOW * stream->size + message % PERIOD;
}

static size_t memory_size(const struct stream *stream)
{
  return (WINDOW + 1) * stream->size + PERIOD;
}

/* 1: posted; 0: not possible now; -1: an answer was printed. */
static int post(struct stream *stream)
{
  struct netapi *api = &rank.api;
  unsigned char *data = slot(stream, stream->posted);
  void **request = &stream->requests[stream->posted % WINDOW];
  ncclResult_t result;
  *request = NULL;
  if (stream->comm->sends) {
    memcpy(data, expected(stream, stream->posted), stream->size);
    result = api->isend(stream->comm->comm, data, stream->size, stream->mhandle, request);
  } else {
    memset(data, WATCH_FILL, stream->size);
    if (stream->watch) {
      *request = (void *)(uintptr_t)NCCL_NET_OPTIONAL_RECV_COMPLETION;
      watch_posted(stream->watch, data, expected(stream, stream->posted), stream->size);
    }
    result = api->irecv(stream->comm->comm, data, stream->size, stream->mhandle, request);
  }
  if (failed(stream->comm->sends ? "isend" : "irecv", result)) {
    return -1;
  }
  if (stream->watch && !stream->comm->sends && !*request) {
    watch_released(stream->watch, data);
  }
  stream->posted += *request != NULL;
  return *request != NULL;
}

/* 1: the oldest message is complete; 0: not yet; -1: an answer was printed. */
static int test(struct stream *stream)
{
  int done = 0, size = 0;
  if (failed("test", rank.api.test(stream->requests[stream->done % WINDOW], &done, &size))) {
    return -1;
  }
  if (done && stream->watch && !stream->comm->sends) {
    watch_released(stream->watch, slot(stream, stream->done));
  }
  if (done && !stream->comm->sends &&
      ((unsigned long)size != stream->size ||
       memcmp(slot(stream, stream->done), expected(stream, stream->done), stream->size) != 0)) {
    answer("wrong %lu", stream->done);
    return -1;
  }
  stream->done += done != 0;
  return done != 0;
}

/* 1: it has advanced; 0: it cannot now; -1: an answer was printed. */
static int advance(struct stream *stream)
{
  int posted = 0, tested = 0;
  if (stream->posted < stream->count && stream->posted - stream->done < WINDOW) {
    posted = post(stream);
  }
  if (posted >= 0 && stream->done < stream->posted) {
    tested = test(stream);
  }
  return posted < 0 || tested < 0 ? -1 : posted + tested > 0;
}

static bool all_done(const struct stream *streams, int count)
{
  for (int i = 0; i < count; i++) {
    if (streams[i].done < streams[i].count) {
      return false;
    }
  }
  return true;
}

/* Lets others run. NCCL's thread would go on asking; a rank that has waited for long sleeps, too,
 * because most tests of lost peers wait for seconds. */
static void idle(uint64_t since_ns)
{
  struct timespec pause = {.tv_nsec = 500 * 1000};
  if (clock_ns() - since_ns < EAGER_NS) {
    sched_yield();
  } else {
    syscall(SYS_nanosleep, &pause, NULL); /* the C library's executes locked instructions */
  }
}

/* false: an answer was printed. */
static bool pump(struct stream *streams, int count)
{
  uint64_t advanced_ns = clock_ns();
  while (!all_done(streams, count)) {
    bool advanced = false;
    for (int i = 0; i < count; i++) {
      int result = advance(&streams[i]);
      if (result < 0) {
        return false;
      }
      advanced |= result > 0;
    }
    if (elapsed_ms() > streams->limit_ms && !all_done(streams, count)) {
      answer("late");
      return false;
    }
    if (advanced) {
      advanced_ns = clock_ns();
    } else {
      idle(advanced_ns);
    }
  }
  return true;
}

/* false: an answer was printed. */
static bool begin_stream(struct stream *stream)
{
  size_t size = memory_size(stream);
  stream->memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stream->memory == MAP_FAILED) {
    fatal("no memory for the messages");
  }
  for (size_t i = 0; i < stream->size + PERIOD; i++) {
    stream->memory[WINDOW * stream->size + i] = (unsigned char)(i % PERIOD);
  }
  return !failed("regMr", rank.api.register_memory(stream->comm->comm, stream->memory, size,
                                                   &stream->mhandle));
}

static void end_stream(struct stream *stream)
{
  rank.api.deregister_memory(stream->comm->comm, stream->mhandle);
  /* Requests of an unfinished stream may still use the memory, so it stays mapped. */
  if (stream->done == stream->count) {
    munmap(stream->memory, memory_size(stream));
  }
}

static void run_streams(struct stream *streams, int count)
{
  int begun = 0;
  while (begun < count && begin_stream(&streams[begun])) {
    begun++;
  }
  struct watch *watch = streams->watch;
  if (watch && watch_start(watch) != 0) {
    fatal("no thread");
  }
  bool good = begun == count && pump(streams, count);
  unsigned long foreign = watch ? watch_end(watch) : 0;
  for (int i = 0; i < begun; i++) {
    end_stream(&streams[i]);
  }
  if (good && foreign) {
    answer("foreign %lu", foreign);
  } else if (good && watch) {
    answer("ok %.1f %lu", elapsed_ms(), atomic_load(&watch->scans));
  } else if (good) {
    answer("ok %.1f", elapsed_ms());
  }
}

static void do_stream(const char *words)
{
  int number;
  struct stream stream = {0};
  if (sscanf(words, "%d %lu %lu %lf", &number, &stream.count, &stream.size, &stream.limit_ms) !=
      4) {
    fatal("send or receive COMM COUNT SIZE MS");
  }
  stream.comm = comm_of(number);
  run_streams(&stream, 1);
}

static void exchange(const char *words, struct watch *watch)
{
  struct stream streams[STREAMS] = {0};
  int count = 0, number, used, more;
  if (sscanf(words, "%lu %lu %lf%n", &streams->count, &streams->size, &streams->limit_ms, &used) !=
      3) {
    fatal("exchange or poll COUNT SIZE MS COMM...");
  }
  streams->watch = watch;
  for (words += used; count < STREAMS && sscanf(words, "%d%n", &number, &more) == 1;
       words += more) {
    streams[count] = streams[0];
    streams[count++].comm = comm_of(number);
  }
  run_streams(streams, count);
}

static void do_exchange(const char *words) { exchange(words, NULL); }

static void do_poll(const char *words)
{
  struct watch watch = {0};
  exchange(words, &watch);
}

/* --- Closing --- */

static ncclResult_t close_comm(struct comm *comm)
{
  return comm->sends ? rank.api.close_send(comm->comm) : rank.api.close_receive(comm->comm);
}

static void do_close(const char *words)
{
  if (!failed("close", close_comm(comm_of(atoi(words))))) {
    answer("ok %.1f", elapsed_ms());
  }
}

static void do_unlisten(const char *words)
{
  if (!failed("closeListen", rank.api.close_listener(listener_of(atoi(words))))) {
    answer("ok");
  }
}

static void do_finalize(const char *words)
{
  if (!failed("finalize", rank.api.finalize())) {
    answer("ok");
  }
}

static void load(void)
{
  char error[NETAPI_ERROR];
  if (netapi_open(&rank.api, rank.plugin, rank.version, error)) {
    fatal(error);
  }
}

static void do_load(const char *words)
{
  load();
  answer("ok");
}

static void do_unload(const char *words)
{
  netapi_close(&rank.api);
  answer("ok");
}

/* The C library applies the new user to every thread. The kernel removes all capabilities from a
 * thread that stops being root. */
static void do_drop(const char *words)
{
  uid_t user = (uid_t)atoi(words);
  for (unsigned long number = 0; prctl(PR_CAPBSET_READ, number, 0, 0, 0) >= 0; number++) {
    prctl(PR_CAPBSET_DROP, number, 0, 0, 0);
  }
  if (setgroups(0, NULL) || setresgid(user, user, user) || setresuid(user, user, user)) {
    fatal("cannot become another user");
  }
  answer("ok");
}

/* Makes all calls that a child could try with inherited objects. */
static void try_all(void *listener, struct comm *comm)
{
  struct netapi *api = &rank.api;
  unsigned char handle[HANDLE_MOST] = {0};
  char data[64] = {0};
  int count = 0;
  void *made = NULL, *mhandle = NULL, *request = NULL;
  ncclResult_t devices = api->devices(&count);
  ncclResult_t listens = api->listen(0, handle, &made);
  ncclResult_t accepts = api->accept(listener, &made);
  ncclResult_t registers = api->register_memory(comm->comm, data, sizeof data, &mhandle);
  ncclResult_t posts = comm->sends ? api->isend(comm->comm, data, sizeof data, mhandle, &request)
                                   : api->irecv(comm->comm, data, sizeof data, mhandle, &request);
  ncclResult_t inits = api->init(say);
  ncclResult_t closes = close_comm(comm);
  ncclResult_t unlistens = api->close_listener(listener);
  api->finalize();
  answer("ok init=%d devices=%d listen=%d accept=%d regMr=%d post=%d close=%d closeListen=%d",
         inits, devices, listens, accepts, registers, posts, closes, unlistens);
}

static void do_fork(const char *words)
{
  int listener, number, status = 0;
  if (sscanf(words, "%d %d", &listener, &number) != 2) {
    fatal("fork LISTENER COMM");
  }
  pid_t child = fork();
  if (child == 0) {
    try_all(listener_of(listener), comm_of(number));
    exit(0);
  }
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
    answer("the child ended with %d", status);
  }
}

static void do_child(const char *words)
{
  ncclResult_t result;
  int code = fork_child(&rank.api, say, words, &result);
  if (!failed("child", result)) {
    answer("ok %d", code);
  }
}

static void do_exit(const char *words) { exit(0); }
static void do_leave(const char *words) { _exit(0); }

static const struct {
  const char *name;
  void (*run)(const char *words);
} commands[] = {
    {"init", do_init},         {"listen", do_listen},     {"connect", do_connect},
    {"accept", do_accept},     {"send", do_stream},       {"receive", do_stream},
    {"exchange", do_exchange}, {"poll", do_poll},         {"close", do_close},
    {"unlisten", do_unlisten}, {"finalize", do_finalize}, {"fork", do_fork},
    {"child", do_child},       {"load", do_load},         {"unload", do_unload},
    {"drop", do_drop},         {"exit", do_exit},         {"leave", do_leave},
};

static void run(const char *line)
{
  size_t length = strcspn(line, " \n");
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
    if (strlen(commands[i].name) == length && strncmp(commands[i].name, line, length) == 0) {
      rank.began_ns = clock_ns();
      commands[i].run(line + length);
      return;
    }
  }
  fatal("no such command");
}

int main(int argc, char **argv)
{
  char line[LINE];
  if (argc != 3) {
    fatal("usage: rank PLUGIN API");
  }
  rank.plugin = argv[1];
  rank.version = atoi(argv[2]);
  load();
  while (fgets(line, sizeof line, stdin)) {
    run(line);
  }
  return 0;
}
