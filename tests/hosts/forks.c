/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/hosts/forks.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ANSWER_MS = 10000, FILES = 64 };

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

/* The number of this process's own files that a child of it lacks. */
static int files_lost(void)
{
  int files[FILES], lost = 0, status = 0;
  for (int i = 0; i < FILES; i++) {
    files[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
  }
  pid_t child = fork();
  if (child == 0) {
    for (int i = 0; i < FILES; i++) {
      lost += fcntl(files[i], F_GETFD) < 0;
    }
    _exit(lost);
  }
  waitpid(child, &status, 0);
  for (int i = 0; i < FILES; i++) {
    close(files[i]);
  }
  return WEXITSTATUS(status);
}

static _Noreturn void live(struct beside *beside, int answers, unsigned ms)
{
  unsigned char code = (unsigned char)(calls(beside, "init") ? (int)beside->api->init(NULL)
                                                             : files_lost());
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
