/* SPDX-License-Identifier: Apache-2.0 */
/* What is to be told about a connection when it is over. */
#ifndef HARP_NC_REPORT_H
#define HARP_NC_REPORT_H

#include "harp/nc/nc_pump.h"

/* Before nc_close. status: how it ended. NC_WELL; NC_FAILED if the file cannot be written. */
int nc_report(struct nc_pump *pump, int status);

#endif
