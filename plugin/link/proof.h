/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The key that the hosts of a job share (HARP_KEY_FILE), and proofs of having it: keyed BLAKE2b
 * (RFC 7693, from libsodium) over hello and welcome. Each proof covers both sides' random
 * challenges, so a recorded proof is useless later. A label for the side keeps one side's proof
 * from being valid for the other.
 */
#ifndef HARP_PLUGIN_PROOF_H
#define HARP_PLUGIN_PROOF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plugin/link/protocol.h"

enum { PROOF_KEY_SIZE = 32 };

struct proof_key {
  bool set;   /* false: proofs are neither required nor sent */
  bool loose; /* every user of this host may read or change the file */
  uint8_t bytes[PROOF_KEY_SIZE];
};

/* The messages that a proof covers. */
struct proof_transcript {
  bool challenged;
  uint8_t hello[HELLO_SIZE];       /* the connector's first hello, its challenge in `proof` */
  uint8_t challenge[WELCOME_SIZE]; /* the acceptor's answer, its challenge in `proof` */
};

enum proof_side { PROOF_CONNECTOR = 'c', PROOF_ACCEPTOR = 'a' };

/* Derives the key from the file's content, without trailing line ends. 0, or a negative errno and
 * one line in error[HARP_ENGINE_ERROR_SIZE]. */
int proof_key_read(struct proof_key *key, const char *path, char *error);
/* Erases the key from memory. */
void proof_key_forget(struct proof_key *key);

/* A random challenge. 0, or -EIO. */
int proof_challenge(uint8_t out[PROOF_SIZE]);

/* Makes a side's proof. said: the message that will carry the proof, with zeros in the proof field.
 * size: bytes of said. */
void proof_make(const struct proof_key *key, enum proof_side side,
                const struct proof_transcript *transcript, const uint8_t *said, size_t size,
                uint8_t out[PROOF_SIZE]);

/* Compares in constant time. */
bool proof_same(const uint8_t a[PROOF_SIZE], const uint8_t b[PROOF_SIZE]);

#endif
