/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network link of an instance's NIC. It is down if the device has failed or has lost its
 * carrier. The log tells when it goes down and when it works again. All under the poll lock.
 */
#ifndef HARP_ENGINE_LINK_STATE_H
#define HARP_ENGINE_LINK_STATE_H

#include "harp/engine/instance.h"

/* Takes the result of the port's last receive. error: a negative errno; 0: the device works. */
void harp_link_state_port(struct harp_instance *instance, int error);

/* Asks for the carrier, which a packet socket does not report. This costs a system call. Called at
 * every tick, and by harp_instance_link_up. */
void harp_link_state_watch(struct harp_instance *instance);

#endif
