/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/windows.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "harp/fnv1a.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434 /* Linux 5.3; all architectures have this number */
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

enum { SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE };

/* --- Offers --- */

static uint64_t hash_file(uint64_t hash, const char *path)
{
  char text[64];
  int file = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t bytes = file < 0 ? 0 : read(file, text, sizeof text);
  if (file >= 0) {
    close(file);
  }
  return fnv1a_64(hash, text, bytes > 0 ? (size_t)bytes : 0);
}

static uint64_t hash_namespace(uint64_t hash, const char *path)
{
  struct stat status;
  if (stat(path, &status)) {
    return hash;
  }
  return fnv1a_64(hash, &status.st_ino, sizeof status.st_ino);
}

/* Pids mean the same in one PID namespace. A network namespace is a host to HARP, such as a pod.
 * NCCL_HOSTID divides a host, as it does for NCCL. */
static uint64_t host_hash(void)
{
  const char *divided = getenv("NCCL_HOSTID");
  uint64_t hash = hash_file(FNV1A_64_BEGIN, "/proc/sys/kernel/random/boot_id");
  hash = hash_namespace(hash, "/proc/self/ns/pid");
  hash = hash_namespace(hash, "/proc/self/ns/net");
  return divided ? fnv1a_64(hash, divided, strlen(divided)) : hash;
}

static bool wanted(void)
{
  const char *text = getenv("HARP_SHARED_MEMORY");
  return !text || strcmp(text, "0") != 0;
}

static bool fill_window(struct windows *windows, int file)
{
  if (fchmod(file, 0400) || ftruncate(file, sizeof(struct window))) {
    return false;
  }
  void *memory = mmap(NULL, sizeof(struct window), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) {
    return false;
  }
  windows->own = memory;
  if (fcntl(file, F_ADD_SEALS, SEALS) ||
      getrandom(windows->own->token, WINDOW_TOKEN, 0) != WINDOW_TOKEN) {
    return false;
  }
  memcpy(windows->offer.token, windows->own->token, WINDOW_TOKEN);
  return true;
}

void windows_init(struct windows *windows)
{
  *windows = (struct windows){.offer = {.pid = (int32_t)getpid(), .file = -1}};
  if (!wanted()) {
    return;
  }
  windows->offer.host = host_hash();
  int file = memfd_create("harp-window", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file >= 0 && fill_window(windows, file)) {
    windows->offer.file = file;
  } else if (file >= 0) {
    close(file);
  }
}

/* --- Attaching --- */

static int pidfd_open(int pid) { return (int)syscall(SYS_pidfd_open, pid, 0); }

static const struct window *map_window(int file, const uint8_t *token)
{
  /* A file without these seals could shrink, and reading it would then raise SIGBUS. */
  int seals = fcntl(file, F_GET_SEALS);
  struct stat status;
  if (seals < 0 || (seals & SEALS) != SEALS || fstat(file, &status) ||
      status.st_size != sizeof(struct window)) {
    return NULL;
  }
  void *memory = mmap(NULL, sizeof(struct window), PROT_READ, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) {
    return NULL;
  }
  const struct window *window = memory;
  if (memcmp(window->token, token, WINDOW_TOKEN) == 0) {
    return window;
  }
  munmap(memory, sizeof(struct window));
  return NULL;
}

/* The process is held before its file is opened: the token then proves that both are the right
 * ones, also if the pid was used again. */
static bool open_window(struct window_peer *peer, const struct window_offer *offer)
{
  char path[64];
  peer->process = pidfd_open(offer->pid);
  if (peer->process < 0 || offer->file < 0) {
    return false;
  }
  snprintf(path, sizeof path, "/proc/%d/fd/%d", offer->pid, offer->file);
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) {
    return false;
  }
  peer->window = map_window(file, offer->token);
  close(file);
  return peer->window != NULL;
}

struct offers {
  const uint8_t *data;
  size_t stride;
  int ranks;
};

static struct window_offer offer_of(const struct offers *offers, int rank)
{
  struct window_offer offer;
  memcpy(&offer, offers->data + (size_t)rank * offers->stride, sizeof offer);
  return offer;
}

static bool same_host(const struct offers *offers, int one, int other)
{
  return offer_of(offers, one).host == offer_of(offers, other).host;
}

/* The number of a rank among those of its host. */
static int local_rank_of(const struct offers *offers, int rank)
{
  int local_rank = 0;
  for (int before = 0; before < rank; before++) {
    local_rank += same_host(offers, before, rank);
  }
  return local_rank;
}

/* Counts the ranks of a host, the first of which is given, and enters them in the grid. false:
 * their number is not that of our host. */
static bool enter_host(struct windows *windows, const struct offers *offers, int first, int host)
{
  int count = 0;
  for (int rank = first; rank < offers->ranks; rank++) {
    if (same_host(offers, first, rank) && count++ < windows->count) {
      windows->grid[(count - 1) * windows->hosts + host] = rank;
    }
  }
  return count == windows->count;
}

/* Enters all ranks in the grid. false: a host has another number of ranks. */
static bool fill_grid(struct windows *windows, const struct offers *offers, int own)
{
  int host = 0;
  windows->hosts = offers->ranks / windows->count;
  for (int first = 0; first < offers->ranks; first++) {
    if (local_rank_of(offers, first) > 0) {
      continue;
    }
    if (same_host(offers, first, own)) {
      windows->host = host;
    }
    if (host == windows->hosts || !enter_host(windows, offers, first, host++)) {
      return false;
    }
  }
  return true;
}

static bool open_windows(struct windows *windows, const struct offers *offers, int own)
{
  for (int rank = 0; rank < offers->ranks; rank++) {
    if (!same_host(offers, own, rank)) {
      continue;
    }
    struct window_offer offer = offer_of(offers, rank);
    struct window_peer *peer = &windows->peers[windows->count++];
    *peer = (struct window_peer){.rank = rank, .process = -1, .window = windows->own};
    if (rank != own && !open_window(peer, &offer)) {
      return false;
    }
  }
  return windows->count > 1 && windows->count <= WINDOW_RANKS;
}

void windows_attach(struct windows *windows, int rank, int ranks, const void *offers, size_t stride)
{
  struct offers all = {offers, stride, ranks};
  if (windows->offer.file < 0) {
    return;
  }
  windows->peers = calloc((size_t)ranks, sizeof *windows->peers);
  windows->grid = calloc((size_t)ranks, sizeof *windows->grid);
  windows->local_rank = local_rank_of(&all, rank);
  windows->attached = windows->peers && windows->grid && open_windows(windows, &all, rank) &&
                      fill_grid(windows, &all, rank);
}

void windows_close_offer(struct windows *windows)
{
  if (windows->offer.file >= 0) {
    close(windows->offer.file);
  }
  windows->offer.file = -1;
}

void windows_free(struct windows *windows)
{
  for (int i = 0; windows->peers && i < windows->count; i++) {
    const struct window_peer *peer = &windows->peers[i];
    if (peer->window && peer->window != windows->own) {
      munmap((void *)(uintptr_t)peer->window, sizeof(struct window));
    }
    if (peer->process >= 0) {
      close(peer->process);
    }
  }
  if (windows->own) {
    munmap(windows->own, sizeof(struct window));
  }
  windows_close_offer(windows);
  free(windows->peers);
  free(windows->grid);
}

/* --- Signals --- */

static void futex(const _Atomic uint32_t *word, int operation, uint32_t value,
                  const struct timespec *timeout)
{
  syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

static void wake_others(struct windows *windows)
{
  for (int i = 0; i < windows->count; i++) {
    if (i != windows->local_rank && atomic_load(&windows->peers[i].window->sleeps)) {
      futex(&windows->own->signals, FUTEX_WAKE, INT32_MAX, NULL);
      return;
    }
  }
}

/* The store and windows_sleep's look at the number are sequentially consistent, as are the two
 * accesses to `sleeps`: either the sleeper sees the signal, or it is seen and woken. */
void windows_signal(struct windows *windows, uint32_t number)
{
  atomic_store(&windows->own->signals, number);
  wake_others(windows);
}

void windows_leave(struct windows *windows, int cause)
{
  if (windows->own && !atomic_load(&windows->own->left)) {
    atomic_store(&windows->own->left, 1 + (uint32_t)cause);
  }
}

bool window_has_signaled(const struct window *window, uint32_t number)
{
  uint32_t signals = atomic_load_explicit(&window->signals, memory_order_acquire);
  return (int32_t)(signals - number) >= 0;
}

enum window_match windows_match(const struct windows *windows, const struct window *window,
                                size_t call, uint64_t bytes)
{
  const struct window_call *own = &windows->own->calls[call], *other = &window->calls[call];
  if (own->kind != other->kind || own->dtype != other->dtype ||
      own->reduction != other->reduction || own->root != other->root) {
    return WINDOW_OTHER_CALL;
  }
  if (other->gives[windows->local_rank] != bytes) {
    return WINDOW_OTHER_SIZE;
  }
  return own->sizes == other->sizes ? WINDOW_MATCHES : WINDOW_OTHER_SIZES;
}

bool windows_sleep(struct windows *windows, long ns)
{
  const struct window *window = windows->awaited;
  if (!window) {
    return false;
  }
  atomic_store(&windows->own->sleeps, 1);
  uint32_t signals = atomic_load(&window->signals);
  if ((int32_t)(signals - windows->awaited_signal) < 0) {
    futex(&window->signals, FUTEX_WAIT, signals, &(struct timespec){.tv_nsec = ns});
  }
  atomic_store(&windows->own->sleeps, 0);
  return true;
}

static bool has_ended(const struct window_peer *peer)
{
  struct pollfd process = {.fd = peer->process, .events = POLLIN};
  return peer->process >= 0 && poll(&process, 1, 0) == 1;
}

enum window_loss windows_lost(const struct windows *windows, int *rank)
{
  enum window_loss loss = WINDOW_KEPT;
  for (int i = 0; windows->awaited && i < windows->count && loss != WINDOW_DIED; i++) {
    const struct window_peer *peer = &windows->peers[i];
    bool died = has_ended(peer);
    uint32_t left = atomic_load(&peer->window->left);
    if (!died && !left) {
      continue;
    }
    /* Looked at last: it may have given its signals and then ended. */
    if (window_has_signaled(peer->window, windows->last_signal)) {
      continue;
    }
    loss = left ? WINDOW_LEFT : WINDOW_DIED;
    *rank = left ? (int)left - 1 : peer->rank;
  }
  return loss;
}
