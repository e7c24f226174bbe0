/* SPDX-License-Identifier: Apache-2.0 */
/* The report about a finished connection. */
#ifndef HARP_NC_REPORT_H
#define HARP_NC_REPORT_H

#include "harp/nc/nc_pump.h"

/* Call it before nc_close. status: the exit status so far. NC_WELL, or NC_FAILED if the file
 * cannot be written. */
int nc_report(struct nc_pump *pump, int status);

#endif
