/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/link/proof.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>
#include <sys/random.h>

#include "harp/engine/engine.h"
#include "harp/engine/key_file.h"

/* Separates this use of the key from any other use of the same key. Both hosts must use the same
 * text. */
static const uint8_t key_label[] = "HARP flow greeting, version 1";

int proof_key_read(struct proof_key *key, const char *path, char *error)
{
  struct harp_key_file file;
  _Static_assert((int)HARP_KEY_FILE_ERROR_SIZE <= (int)HARP_ENGINE_ERROR_SIZE, "the caller's line");
  memset(key, 0, sizeof *key);
  int result = harp_key_file_read(&file, path, error);
  if (result == 0) {
    uint8_t label[PROOF_KEY_SIZE];
    crypto_generichash_blake2b(label, sizeof label, key_label, sizeof key_label, NULL, 0);
    crypto_generichash_blake2b(key->bytes, sizeof key->bytes, file.bytes, file.length, label,
                               sizeof label);
    key->set = true;
    key->loose = file.loose;
  }
  sodium_memzero(&file, sizeof file);
  return result;
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
