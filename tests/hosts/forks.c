/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/hosts/forks.h"

#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ANSWER_MS = 10000 };

struct beside {
  struct netapi *api;
  ncclDebugLogger_t logger;
  char call[16];
  ncclResult_t result;
};

static bool calls(const struct beside *beside, const char *name)
{
  return strcmp(beside->call, name) == 0;
}

static void *make_call(void *argument)
{
  struct beside *beside = argument;
  struct netapi *api = beside->api;
  beside->result = calls(beside, "init")       ? api->init(beside->logger)
                   : calls(beside, "finalize") ? api->finalize()
                                               : ncclSuccess;
  return NULL;
}

static _Noreturn void live(struct beside *beside, int answers, unsigned ms)
{
  unsigned char code = calls(beside, "init") ? (unsigned char)beside->api->init(NULL) : 0;
  (void)!write(answers, &code, 1);
  close(answers);
  for (int fd = 0; fd <= STDERR_FILENO; fd++) {
    close(fd); /* the reader of these pipes waits only for the parent's end */
  }
  usleep((useconds_t)ms * 1000);
  _exit(0);
}

int fork_child(struct netapi *api, ncclDebugLogger_t logger, const char *words,
               ncclResult_t *result)
{
  struct beside beside = {.api = api, .logger = logger};
  unsigned ms, wait_ms = 0;
  unsigned char code;
  pthread_t thread;
  int ends[2];
  if (sscanf(words, "%u %15s %u", &ms, beside.call, &wait_ms) < 1 || pipe(ends) != 0 ||
      pthread_create(&thread, NULL, make_call, &beside) != 0) {
    abort();
  }
  usleep((useconds_t)wait_ms * 1000);
  pid_t child = fork();
  if (child == 0) {
    live(&beside, ends[1], ms);
  }
  struct pollfd answer = {.fd = ends[0], .events = POLLIN};
  bool answers = child > 0 && poll(&answer, 1, ANSWER_MS) == 1 && read(ends[0], &code, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  pthread_join(thread, NULL);
  *result = beside.result;
  return answers ? code : -1;
}
