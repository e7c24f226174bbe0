/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model-links [-v]: runs the programs on standard input, one per line. It answers each with a line:
 * "ok", the number of frames and the number of time steps, or "wrong" and the violation. After a
 * violation it exits with status 1. -v prints every event, -a first prints addresses for a tracer.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/model/links.h"

static bool verbose;

static double now_ms(void) { return (double)(world.now - 1000 * NS_PER_S) / 1e6; }

void tell(const char *format, ...)
{
  va_list arguments;
  if (!verbose) {
    return;
  }
  printf("%12.3f ms  ", now_ms());
  va_start(arguments, format);
  vprintf(format, arguments);
  va_end(arguments);
  putchar('\n');
}

void wrong(const char *format, ...)
{
  va_list arguments;
  printf("wrong at %.3f ms: ", now_ms());
  va_start(arguments, format);
  vprintf(format, arguments);
  va_end(arguments);
  putchar('\n');
  _Exit(1);
}

static void load(unsigned side, const char *folder, char name)
{
  char path[4096];
  snprintf(path, sizeof path, "%s/libmodel-process-%c.so", folder, name);
  void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const struct process_api *api = object ? dlsym(object, "harp_model_process") : NULL;
  if (!api) {
    fprintf(stderr, "%s\n", dlerror());
    exit(2);
  }
  world.sides[side].api = api;
}

/* Where the objects, the phases and the stack of this process are. */
static void tell_addresses(void)
{
  printf("model-links world %p\n", (const void *)&world);
  printf("libmodel-process-a.so harp_model_process %p\n", (const void *)world.sides[0].api);
  printf("libmodel-process-b.so harp_model_process %p\n", (const void *)world.sides[1].api);
  printf("phases %p %zu\n", (const void *)(uintptr_t)world.phases, sizeof world.phases);
  printf("stack %p\n", __builtin_frame_address(0));
}

/* Returns the folder of this program. */
static const char *folder_of(char *program)
{
  char *slash = strrchr(program, '/');
  if (!slash) {
    return ".";
  }
  *slash = '\0';
  return program;
}

int main(int count, char **arguments)
{
  char *text = NULL;
  size_t size = 0;
  verbose = count > 1 && strcmp(arguments[1], "-v") == 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  const char *folder = folder_of(arguments[0]);
  load(0, folder, 'a');
  load(1, folder, 'b');
  if (count > 1 && strcmp(arguments[1], "-a") == 0) {
    tell_addresses();
  }
  while (getline(&text, &size, stdin) > 0) {
    text[strcspn(text, "\n")] = '\0';
    if (!program_run(text)) {
      puts("invalid program");
      return 2;
    }
    printf("ok %llu %llu\n", (unsigned long long)world.frames, (unsigned long long)world.steps);
  }
  free(text);
  return 0;
}
