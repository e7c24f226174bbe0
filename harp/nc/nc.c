/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/nc/nc.h"

#include <signal.h>

#include "harp/nc/nc_pump.h"
#include "harp/nc/nc_report.h"

static int talk(struct nc *nc)
{
  struct nc_pump pump;
  int status = nc->options->listen ? nc_accept(nc) : nc_connect(nc);
  if (status != NC_WELL) {
    return status;
  }
  status = nc_pump_run(&pump, nc);
  int reported = nc_report(&pump, status);
  nc_pump_close(&pump);
  return status != NC_WELL ? status : reported;
}

int main(int argc, char **argv)
{
  struct nc_options options;
  struct nc nc;
  int status = nc_options_parse(&options, argc, argv);
  if (status >= 0) {
    return status;
  }
  status = nc_open(&nc, &options);
  if (status == NC_WELL) {
    status = talk(&nc);
  }
  nc_close(&nc);
  if (nc_signal()) { /* end by the same signal, so that the parent process sees it */
    signal(nc_signal(), SIG_DFL);
    raise(nc_signal());
  }
  return status;
}
