/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A key that the hosts of a job share (HARP_KEY_FILE), and proofs of having it:
 * BLAKE2b keyed with it (RFC 7693, by libsodium) over a greeting. Each side
 * proves it over both sides' random challenges, so what somebody has recorded
 * is worth nothing later, and neither side's proof is good for the other.
 */
#ifndef HARP_PLUGIN_PROOF_H
#define HARP_PLUGIN_PROOF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plugin/link/protocol.h"

enum { PROOF_KEY_SIZE = 32 };

struct proof_key {
  bool set;   /* false: no proofs are asked for or given */
  bool loose; /* everybody on this host may read the file */
  uint8_t bytes[PROOF_KEY_SIZE];
};

/* What two flows' ends have said so far that a proof is about. */
struct proof_transcript {
  bool challenged;
  uint8_t hello[HELLO_SIZE];       /* the connector's first one, its challenge in `proof` */
  uint8_t challenge[WELCOME_SIZE]; /* the acceptor's answer, its own in `proof` */
};

enum proof_side { PROOF_CONNECTOR = 'c', PROOF_ACCEPTOR = 'a' };

/* The key is made from the file's content; a line end after it is not part of
 * it. Negative errno, and one line in error[HARP_ENGINE_ERROR_SIZE]. */
int proof_key_read(struct proof_key *key, const char *path, char *error);
void proof_key_forget(struct proof_key *key);

/* A challenge that nobody can guess. -EIO. */
int proof_challenge(uint8_t out[PROOF_SIZE]);

/* A side's proof; said: the message that will carry it, with zeroes in its place. */
void proof_make(const struct proof_key *key, enum proof_side side,
                const struct proof_transcript *transcript, const uint8_t *said, size_t size,
                uint8_t out[PROOF_SIZE]);

/* Takes the same time whatever differs. */
bool proof_same(const uint8_t a[PROOF_SIZE], const uint8_t b[PROOF_SIZE]);

#endif
