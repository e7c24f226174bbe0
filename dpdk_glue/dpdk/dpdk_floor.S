/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DPDK's archives were compiled elsewhere, without harp/glibc_floor.h, so their references are not
 * bound to old symbol versions. Each such name is here a hidden function that jumps to the C
 * library's oldest version of it.
 */
#if defined(__x86_64__)
#define JUMP(name) jmp name@PLT
#define FIRST 2.2.5
#define SINCE(version) version
#elif defined(__aarch64__)
#define JUMP(name) b name
#define FIRST 2.17
#define SINCE(version) 2.17 /* 64-bit Arm starts with 2.17 */
#endif

#define VERSION_(old, version) old@GLIBC_##version
#define VERSION(old, version) VERSION_(old, version)
#define OLD(name, old, version)               \
  .globl name; .hidden name;                  \
  .type name, %function;                      \
  name: JUMP(harp_old_##name);                \
  .symver harp_old_##name, VERSION(old, version)

  .text
  OLD(dladdr, dladdr, FIRST)
  OLD(dlclose, dlclose, FIRST)
  OLD(dlerror, dlerror, FIRST)
  OLD(dlopen, dlopen, FIRST)
  OLD(fcntl64, fcntl, FIRST)
  OLD(pthread_attr_getstacksize, pthread_attr_getstacksize, FIRST)
  OLD(pthread_attr_setaffinity_np, pthread_attr_setaffinity_np, SINCE(2.3.4))
  OLD(pthread_attr_setstack, pthread_attr_setstack, FIRST)
  OLD(pthread_cancel, pthread_cancel, FIRST)
  OLD(pthread_condattr_setclock, pthread_condattr_setclock, SINCE(2.3.3))
  OLD(pthread_create, pthread_create, FIRST)
  OLD(pthread_detach, pthread_detach, FIRST)
  OLD(pthread_getaffinity_np, pthread_getaffinity_np, SINCE(2.3.4))
  OLD(pthread_getname_np, pthread_getname_np, SINCE(2.12))
  OLD(pthread_getspecific, pthread_getspecific, FIRST)
  OLD(pthread_join, pthread_join, FIRST)
  OLD(pthread_key_create, pthread_key_create, FIRST)
  OLD(pthread_key_delete, pthread_key_delete, FIRST)
  OLD(pthread_setaffinity_np, pthread_setaffinity_np, SINCE(2.3.4))
  OLD(pthread_setname_np, pthread_setname_np, SINCE(2.12))
  OLD(pthread_setspecific, pthread_setspecific, FIRST)

  .section .note.GNU-stack, "", %progbits
