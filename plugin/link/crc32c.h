/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC32C (Castagnoli, RFC 3720, 12.1), by the CPU's instruction where it has one.
 */
#ifndef HARP_PLUGIN_CRC32C_H
#define HARP_PLUGIN_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continues crc, which starts with 0; length in bytes. Any thread. */
uint32_t crc32c(uint32_t crc, const void *data, size_t length);

/* The same without the instruction; exported so that a test can compare both. */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t length);

#endif
