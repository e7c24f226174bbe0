/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/proof.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harp/engine/engine.h"

enum {
  FILE_MIN = 16, /* bytes; fewer can be guessed */
  FILE_MAX = 4096,
};

/* Apart from every other use that somebody may make of the same key. */
static const uint8_t key_label[] = "HARP flow greeting, version 1";

static int refuse(char *error, int result, const char *path, const char *what)
{
  snprintf(error, HARP_ENGINE_ERROR_SIZE,
           "HARP_KEY_FILE %s: %s; make one with 'head -c 32 /dev/urandom | base64 > FILE', copy it "
           "to every host of the job, and let its user read it",
           path, what);
  return result;
}

/* Bytes read, at most size; negative errno. */
static ssize_t read_whole(int descriptor, uint8_t *bytes, size_t size)
{
  size_t total = 0;
  while (total < size) {
    ssize_t count = read(descriptor, bytes + total, size - total);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return -errno;
    }
    if (count == 0) {
      break;
    }
    total += (size_t)count;
  }
  return (ssize_t)total;
}

static size_t without_line_end(const uint8_t *bytes, size_t size)
{
  while (size > 0 && (bytes[size - 1] == '\n' || bytes[size - 1] == '\r')) {
    size--;
  }
  return size;
}

int proof_key_read(struct proof_key *key, const char *path, char *error)
{
  uint8_t bytes[FILE_MAX + 1];
  struct stat status;
  memset(key, 0, sizeof *key);
  /* A pipe that nobody writes to must not hold init up. */
  int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0 || fstat(descriptor, &status) != 0) {
    int result = -errno;
    if (descriptor >= 0) {
      close(descriptor);
    }
    return refuse(error, result, path, strerror(-result));
  }
  ssize_t size = read_whole(descriptor, bytes, sizeof bytes);
  close(descriptor);
  if (size < 0) {
    return refuse(error, (int)size, path, strerror((int)-size));
  }
  if (size > FILE_MAX) {
    return refuse(error, -EINVAL, path, "more than 4096 bytes are no key");
  }
  size_t length = without_line_end(bytes, (size_t)size);
  if (length < FILE_MIN) {
    return refuse(error, -EINVAL, path, "fewer than 16 bytes can be guessed");
  }
  uint8_t label[PROOF_KEY_SIZE];
  crypto_generichash_blake2b(label, sizeof label, key_label, sizeof key_label, NULL, 0);
  crypto_generichash_blake2b(key->bytes, sizeof key->bytes, bytes, length, label, sizeof label);
  sodium_memzero(bytes, sizeof bytes);
  key->set = true;
  key->loose = (status.st_mode & (S_IROTH | S_IWOTH)) != 0;
  return 0;
}

void proof_key_forget(struct proof_key *key) { sodium_memzero(key, sizeof *key); }

int proof_challenge(uint8_t out[PROOF_SIZE])
{
  return getrandom(out, PROOF_SIZE, 0) == PROOF_SIZE ? 0 : -EIO;
}

void proof_make(const struct proof_key *key, enum proof_side side,
                const struct proof_transcript *transcript, const uint8_t *said, size_t size,
                uint8_t out[PROOF_SIZE])
{
  const uint8_t label = (uint8_t)side;
  crypto_generichash_blake2b_state state;
  crypto_generichash_blake2b_init(&state, key->bytes, sizeof key->bytes, PROOF_SIZE);
  crypto_generichash_blake2b_update(&state, &label, sizeof label);
  crypto_generichash_blake2b_update(&state, transcript->hello, sizeof transcript->hello);
  crypto_generichash_blake2b_update(&state, transcript->challenge, sizeof transcript->challenge);
  crypto_generichash_blake2b_update(&state, said, size);
  crypto_generichash_blake2b_final(&state, out, PROOF_SIZE);
  sodium_memzero(&state, sizeof state);
}

bool proof_same(const uint8_t a[PROOF_SIZE], const uint8_t b[PROOF_SIZE])
{
  return sodium_memcmp(a, b, PROOF_SIZE) == 0;
}
