/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Properties of an interface and of addresses, as the kernel reports them.
 */
#ifndef HARP_DPDK_GLUE_NETDEV_H
#define HARP_DPDK_GLUE_NETDEV_H

#include <stdbool.h>
#include <stdint.h>

#include "dpdk_glue/port.h"

struct harp_netdev {
  int index;
  bool up;         /* IFF_UP: enabled by the administrator */
  bool carrier;    /* IFF_RUNNING: the link works */
  bool bond;       /* IFF_MASTER: it has other interfaces below it */
  bool no_program; /* the kernel says that no XDP program is attached */
  uint8_t mac[6];
  uint32_t mtu;
  uint32_t gso_max; /* larger or equal frames are segmented in software, bytes */
  bool tso;         /* the device segments TCP frames; otherwise software does, also short ones */
  uint32_t speed_mbps; /* 0: unknown */
  uint32_t address;    /* the first IPv4 address, a link-local one last; network order; 0: none */
  uint8_t prefix;
  uint32_t gateway;   /* of the interface's default route; 0: none */
  char pci_path[256]; /* the PCI function's folder in sysfs; "" for a virtual device */
};

/* Fills *device. scheme: of the port that asks, for error. -ENODEV: no such interface; -EOPNOTSUPP:
 * not Ethernet. On failure error (HARP_PORT_ERROR_SIZE bytes) holds one line that begins with
 * "SCHEME:NAME". */
int harp_netdev_read(const char *scheme, const char *name, struct harp_netdev *device, char *error);

/* Checks that a port with this configuration can use the interface: it is up, its MTU is large
 * enough, and the address is the kernel's to share, or one that the kernel does not have. name: of
 * the interface. 0, or a negative errno and one line in error, as harp_netdev_read. */
int harp_netdev_check(const char *scheme, const char *name, const struct harp_netdev *device,
                      const struct harp_port_config *config, char *error);
/* Whether the configuration gives HARP a MAC address that is not the interface's. */
bool harp_netdev_own_mac(const struct harp_netdev *device, const struct harp_port_config *config);
/* Fills the fields of info that follow from the interface and the configuration: all but offloads,
 * receive_depth, max_frame and summary. */
void harp_netdev_describe(const struct harp_netdev *device, const struct harp_port_config *config,
                          struct harp_port_info *info);

/* Stores up to max indexes of other interfaces that are in the interface's subnet and answer ARP
 * for its address (sysctl arp_ignore = 0). Peers may send its frames to them. Returns their
 * number. */
unsigned harp_netdev_find_flux(const struct harp_netdev *device, int *others, unsigned max);

/* Whether the kernel says that no XDP program is attached to the interface. */
bool harp_netdev_lacks_program(int index);
/* The number of queues on which the interface may deliver a frame; 1 if the driver does not say. */
unsigned harp_netdev_queues(const char *name);
/* Opens a socket for the calls below. It stays in this network namespace, whichever process has
 * it. Returns a descriptor, which the caller closes, or a negative errno. */
int harp_netdev_control(void);
/* Returns true if the interface is up and has a carrier. false: it is down, or it is gone. control:
 * of harp_netdev_control. Any thread. */
bool harp_netdev_has_carrier(int control, int index);
/* Whether a port shares the kernel's IP address, and this host no longer has this address, or the
 * interface no longer has the port's MAC address. The port's ARP requests would mislead neighbours.
 * A port with an address of its own answers ARP itself. Any thread. */
bool harp_netdev_lost_address(int control, const struct harp_netdev *device,
                              const struct harp_port_info *info);
/* Whether a port may use its interface. 0, or an error of receive in port.h: -ENETDOWN, -ENODEV or
 * -EADDRNOTAVAIL. bound: a packet socket on the interface. The kernel unbinds it if the interface
 * leaves the network namespace, also if it comes back. Any thread. */
int harp_netdev_check_link(int control, int bound, const struct harp_netdev *device,
                           const struct harp_port_info *info);

#endif
