/* SPDX-License-Identifier: Apache-2.0 */
/* Times are in nanoseconds, in uint64_t. */
#ifndef HARP_TIME_UNITS_H
#define HARP_TIME_UNITS_H

#define NS_PER_US 1000ull
#define NS_PER_MS 1000000ull
#define NS_PER_S 1000000000ull

#endif
