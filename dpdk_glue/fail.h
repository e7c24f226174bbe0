/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error reporting for ports that cannot open.
 */
#ifndef HARP_DPDK_GLUE_FAIL_H
#define HARP_DPDK_GLUE_FAIL_H

/* Writes one line (what, where, how to fix it) into error, which has room for
 * HARP_PORT_ERROR_SIZE bytes, and returns code, a negative errno, so that a
 * failing path is one statement. */
int harp_port_fail(char *error, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
