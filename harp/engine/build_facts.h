/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this build holds, for `harp --version`. The strings are constant. Thread: any.
 */
#ifndef HARP_ENGINE_BUILD_FACTS_H
#define HARP_ENGINE_BUILD_FACTS_H

/* The commit, with "-dirty" after changes that are not committed; "unknown" without a clone. */
extern const char harp_build_commit[];

/* The release of the DPDK that is linked in; "" in a build without DPDK. */
extern const char harp_build_dpdk[];

/* The schemes of the devices that this build opens, separated by spaces. */
extern const char harp_build_devices[];

#endif
