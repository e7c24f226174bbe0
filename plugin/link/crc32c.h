/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC32C (Castagnoli, RFC 3720, 12.1), by the processor's instruction where it
 * has one.
 */
#ifndef HARP_PLUGIN_CRC32C_H
#define HARP_PLUGIN_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Goes on with crc, which is 0 at the start. Any thread. */
uint32_t crc32c(uint32_t crc, const void *data, size_t length);

/* The same without the instruction; exposed so that a test can hold them against each other. */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t length);

#endif
