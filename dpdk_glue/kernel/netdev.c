/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uses rtnetlink and ioctl instead of files where possible, because /sys may show the interfaces of
 * another network namespace.
 */
#include "dpdk_glue/kernel/netdev.h"

#include <net/if.h> /* before the kernel's headers, which then do not redefine its names */

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <linux/ethtool.h>
#include <linux/if_arp.h>
#include <linux/if_packet.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dpdk_glue/descriptor.h"
#include "dpdk_glue/fail.h"
#include "dpdk_glue/port.h"

enum { REPLY_BYTES = 32768, GSO_LEGACY_MAX = 65536 };

/* Sends one request and reads one reply; the kernel answers synchronously. Returns the reply's
 * length in bytes or a negative errno. */
static ssize_t ask(const void *request, size_t size, void *reply)
{
  int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (fd < 0) {
    return -errno;
  }
  ssize_t got = send(fd, request, size, 0) < 0 ? -1 : recv(fd, reply, REPLY_BYTES, MSG_DONTWAIT);
  ssize_t rc = got < 0 ? -errno : got;
  close(fd);
  const struct nlmsghdr *header = reply;
  if (rc >= 0 && (rc < (ssize_t)sizeof(*header) || header->nlmsg_len > (size_t)rc)) {
    return -EPROTO;
  }
  if (rc >= 0 && header->nlmsg_type == NLMSG_ERROR) {
    return ((const struct nlmsgerr *)NLMSG_DATA(header))->error;
  }
  return rc;
}

/* attribute: IFLA_XDP. */
static bool lacks_program(const struct rtattr *attribute)
{
  int left = (int)RTA_PAYLOAD(attribute);
  for (const struct rtattr *at = RTA_DATA(attribute); RTA_OK(at, left); at = RTA_NEXT(at, left)) {
    if (at->rta_type == IFLA_XDP_ATTACHED) {
      return *(const uint8_t *)RTA_DATA(at) == XDP_ATTACHED_NONE;
    }
  }
  return false;
}

static void read_link_attribute(const struct rtattr *attribute, struct harp_netdev *device)
{
  const void *data = RTA_DATA(attribute);
  switch (attribute->rta_type) {
  case IFLA_ADDRESS:
    if (RTA_PAYLOAD(attribute) == sizeof(device->mac)) {
      memcpy(device->mac, data, sizeof(device->mac));
    }
    break;
  case IFLA_MTU: memcpy(&device->mtu, data, sizeof(device->mtu)); break;
  case IFLA_GSO_MAX_SIZE: memcpy(&device->gso_max, data, sizeof(device->gso_max)); break;
  case IFLA_XDP: device->no_program = lacks_program(attribute); break;
  default: break;
  }
}

static int read_link(struct harp_netdev *device, int *hardware)
{
  struct {
    struct nlmsghdr header;
    struct ifinfomsg link;
  } request = {
      .header = {.nlmsg_len = sizeof(request),
                 .nlmsg_type = RTM_GETLINK,
                 .nlmsg_flags = NLM_F_REQUEST},
      .link = {.ifi_index = device->index},
  };
  _Alignas(struct nlmsghdr) char reply[REPLY_BYTES];
  ssize_t rc = ask(&request, sizeof(request), reply);
  if (rc < 0) {
    return (int)rc;
  }
  const struct nlmsghdr *header = (const struct nlmsghdr *)reply;
  const struct ifinfomsg *link = NLMSG_DATA(header);
  *hardware = link->ifi_type;
  device->up = link->ifi_flags & IFF_UP;
  device->carrier = link->ifi_flags & IFF_RUNNING;
  device->bond = link->ifi_flags & IFF_MASTER;
  device->gso_max = GSO_LEGACY_MAX;
  int left = (int)(header->nlmsg_len - NLMSG_LENGTH(sizeof(*link)));
  for (const struct rtattr *at = IFLA_RTA(link); RTA_OK(at, left); at = RTA_NEXT(at, left)) {
    read_link_attribute(at, device);
  }
  if (device->gso_max > GSO_LEGACY_MAX) { /* the IPv4 length field holds no more */
    device->gso_max = GSO_LEGACY_MAX;
  }
  return 0;
}

bool harp_netdev_lacks_program(int index)
{
  struct harp_netdev device = {.index = index};
  int hardware;
  return read_link(&device, &hardware) == 0 && device.no_program;
}

static uint8_t prefix_length(uint32_t mask) { return (uint8_t)__builtin_popcount(mask); }

/* Whether an address with this label is one of the interface: "eth0", or "eth0:" and more. */
static bool is_label_of(const char *label, const char *name)
{
  size_t length = strlen(name);
  return strncmp(label, name, length) == 0 && (label[length] == '\0' || label[length] == ':');
}

static bool is_link_local(uint32_t address)
{
  return ntohl(address) >> 16 == (169 << 8 | 254); /* RFC 3927 */
}

/* The kernel lists link-local addresses first. One counts only if there is no other address. */
static void read_address(const char *name, struct harp_netdev *device)
{
  struct ifaddrs *list;
  if (getifaddrs(&list) < 0) {
    return;
  }
  for (const struct ifaddrs *at = list; at; at = at->ifa_next) {
    if (!at->ifa_addr || !at->ifa_netmask || at->ifa_addr->sa_family != AF_INET ||
        !is_label_of(at->ifa_name, name)) {
      continue;
    }
    uint32_t address = ((const struct sockaddr_in *)at->ifa_addr)->sin_addr.s_addr;
    uint32_t mask = ((const struct sockaddr_in *)at->ifa_netmask)->sin_addr.s_addr;
    if (!device->address || (is_link_local(device->address) && !is_link_local(address))) {
      device->address = address;
      device->prefix = prefix_length(mask);
    }
  }
  freeifaddrs(list);
}

/* Reads the main table's default route with the lowest metric. Uses thread-self, because a
 * thread may be in its own namespace. */
static void read_gateway(const char *name, struct harp_netdev *device)
{
  FILE *file = fopen("/proc/thread-self/net/route", "re");
  if (!file) {
    return;
  }
  char line[256], interface[IFNAMSIZ];
  unsigned destination, gateway, mask, metric, best = UINT_MAX;
  while (fgets(line, sizeof(line), file)) {
    if (sscanf(line, "%15s %x %x %*x %*d %*d %u %x", interface, &destination, &gateway, &metric,
               &mask) != 5 ||
        strcmp(interface, name) != 0 || destination || mask || !gateway || metric >= best) {
      continue;
    }
    best = metric;
    device->gateway = gateway; /* the file prints the big-endian word as a host number */
  }
  fclose(file);
}

/* Asks the driver. command: begins with the number of an ETHTOOL_ request. false: no answer. */
static bool ask_driver(const char *name, void *command)
{
  struct ifreq request = {.ifr_data = command};
  snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
  int fd = harp_netdev_control();
  bool answered = fd >= 0 && ioctl(fd, SIOCETHTOOL, &request) == 0;
  harp_descriptor_close(fd);
  return answered;
}

static void read_speed(const char *name, struct harp_netdev *device)
{
  struct ethtool_cmd command = {.cmd = ETHTOOL_GSET};
  if (ask_driver(name, &command)) {
    uint32_t speed = ethtool_cmd_speed(&command);
    device->speed_mbps = speed == (uint32_t)SPEED_UNKNOWN || speed == UINT16_MAX ? 0 : speed;
  }
}

static void read_tso(const char *name, struct harp_netdev *device)
{
  struct ethtool_value value = {.cmd = ETHTOOL_GTSO};
  device->tso = ask_driver(name, &value) && value.data;
}

unsigned harp_netdev_queues(const char *name)
{
  struct ethtool_channels channels = {.cmd = ETHTOOL_GCHANNELS};
  unsigned count = ask_driver(name, &channels) ? channels.rx_count + channels.combined_count : 0;
  return count ? count : 1;
}

static bool is_pci_function(const char *name)
{
  unsigned domain, bus, slot, function;
  int end = 0;
  return sscanf(name, "%x:%2x:%2x.%1x%n", &domain, &bus, &slot, &function, &end) == 4 &&
         name[end] == '\0';
}

/* /sys may belong to another namespace. It is ours only if the index agrees. */
static bool sysfs_is_ours(const char *name, int index)
{
  char path[PATH_MAX];
  int seen = 0;
  snprintf(path, sizeof(path), "/sys/class/net/%s/ifindex", name);
  FILE *file = fopen(path, "re");
  if (!file) {
    return false;
  }
  bool read = fscanf(file, "%d", &seen) == 1;
  fclose(file);
  return read && seen == index;
}

/* A virtio or other bus may stand between the interface and its PCI function. The last PCI
 * address in the path is the function's. */
static void read_pci_path(const char *name, struct harp_netdev *device)
{
  char link[PATH_MAX], path[PATH_MAX];
  snprintf(link, sizeof(link), "/sys/class/net/%s/device", name);
  if (!sysfs_is_ours(name, device->index) || !realpath(link, path)) {
    return;
  }
  for (char *slash; (slash = strrchr(path, '/')) && slash != path; *slash = '\0') {
    if (is_pci_function(slash + 1)) {
      if (strlen(path) < sizeof(device->pci_path)) {
        memcpy(device->pci_path, path, strlen(path) + 1);
      }
      return;
    }
  }
}

static int no_such_interface(const char *scheme, const char *name, char *error)
{
  char names[200] = "";
  size_t used = 0;
  struct if_nameindex *list = if_nameindex();
  for (const struct if_nameindex *at = list; at && at->if_index && used < sizeof(names); at++) {
    used += (size_t)snprintf(names + used, sizeof(names) - used, " %s", at->if_name);
  }
  if_freenameindex(list);
  return harp_port_fail(error, -ENODEV,
                        "%s:%.40s: no such interface in this network namespace, which has:%s; "
                        "correct device, or in a pod set hostNetwork: true or attach the NIC "
                        "(Multus)",
                        scheme, name, names);
}

int harp_netdev_read(const char *scheme, const char *name, struct harp_netdev *device, char *error)
{
  memset(device, 0, sizeof(*device));
  device->index = (int)if_nametoindex(name);
  if (!device->index) {
    return no_such_interface(scheme, name, error);
  }
  int hardware = 0;
  int rc = read_link(device, &hardware);
  if (rc < 0) {
    return harp_port_fail(error, rc,
                          "%s:%s: cannot read the interface's state: %s; is "
                          "netlink allowed here?",
                          scheme, name, strerror(-rc));
  }
  if (hardware != ARPHRD_ETHER) {
    return harp_port_fail(error, -EOPNOTSUPP,
                          "%s:%s: not an Ethernet interface (its type is "
                          "%d); name one that is, as ip -br link shows",
                          scheme, name, hardware);
  }
  read_address(name, device);
  read_gateway(name, device);
  read_speed(name, device);
  read_tso(name, device);
  read_pci_path(name, device);
  return 0;
}

/* Returns true if the address belongs to this host (`ip route get` prints "local"). address:
 * network order. */
static bool is_local(uint32_t address)
{
  struct {
    struct nlmsghdr header;
    struct rtmsg route;
    struct rtattr attribute;
    uint32_t destination;
  } request = {
      .header = {.nlmsg_len = sizeof(request),
                 .nlmsg_type = RTM_GETROUTE,
                 .nlmsg_flags = NLM_F_REQUEST},
      .route = {.rtm_family = AF_INET, .rtm_dst_len = 32},
      .attribute = {.rta_len = RTA_LENGTH(sizeof(uint32_t)), .rta_type = RTA_DST},
      .destination = address,
  };
  _Alignas(struct nlmsghdr) char reply[REPLY_BYTES];
  if (ask(&request, sizeof(request), reply) < 0) {
    return false;
  }
  const struct rtmsg *route = NLMSG_DATA((const struct nlmsghdr *)reply);
  return route->rtm_type == RTN_LOCAL;
}

int harp_netdev_control(void)
{
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  return fd < 0 ? -errno : fd;
}

/* The IFF_ flags of an interface, or a negative errno. */
static int read_flags(int control, int index)
{
  struct ifreq request = {.ifr_ifindex = index};
  if (ioctl(control, SIOCGIFNAME, &request) < 0 || ioctl(control, SIOCGIFFLAGS, &request) < 0) {
    return -errno;
  }
  return (unsigned short)request.ifr_flags;
}

bool harp_netdev_has_carrier(int control, int index)
{
  int flags = read_flags(control, index);
  return flags >= 0 && flags & IFF_RUNNING;
}

/* Whether this namespace has lost an address, network order. Asks by an option that takes no lock
 * of the kernel's: SIOCGIFCONF and rtnetlink may wait for 0.1 s. false: it has it, or an agent's
 * control socket cannot tell. */
static bool lost_ip_address(int control, uint32_t address)
{
  const struct in_addr own = {address};
  return setsockopt(control, IPPROTO_IP, IP_MULTICAST_IF, &own, sizeof(own)) < 0 &&
         errno == EADDRNOTAVAIL;
}

bool harp_netdev_lost_address(int control, const struct harp_netdev *device,
                              const struct harp_port_info *info)
{
  struct ifreq request = {.ifr_ifindex = device->index};
  if (!info->shares_address || ioctl(control, SIOCGIFNAME, &request) < 0 ||
      ioctl(control, SIOCGIFHWADDR, &request) < 0) {
    return false;
  }
  return memcmp(request.ifr_hwaddr.sa_data, info->mac, sizeof(info->mac)) != 0 ||
         lost_ip_address(control, info->address);
}

int harp_netdev_check_link(int control, int bound, const struct harp_netdev *device,
                           const struct harp_port_info *info)
{
  struct sockaddr_ll here;
  socklen_t length = sizeof(here);
  int flags = read_flags(control, device->index);
  if (flags < 0 || getsockname(bound, (struct sockaddr *)&here, &length) < 0 ||
      here.sll_ifindex != device->index) {
    return -ENODEV;
  }
  if (!(flags & IFF_UP)) {
    return -ENETDOWN;
  }
  return harp_netdev_lost_address(control, device, info) ? -EADDRNOTAVAIL : 0;
}

/* The sysctl arp_ignore of an interface, or of "all". */
static int arp_ignore(const char *name)
{
  char path[64 + IFNAMSIZ];
  int value = 0;
  snprintf(path, sizeof(path), "/proc/sys/net/ipv4/conf/%.15s/arp_ignore", name);
  FILE *file = fopen(path, "re");
  if (file) {
    if (fscanf(file, "%d", &value) != 1) {
      value = 0;
    }
    fclose(file);
  }
  return value;
}

/* Whether the kernel answers ARP on the interface for the host's addresses on other ones. The
 * larger of the two values counts (ip-sysctl.rst): 1 and 2 answer for the interface's own addresses
 * only, 8 for none. */
static bool answers_for_others(const char *name)
{
  int all = arp_ignore("all"), own = arp_ignore(name), value = own > all ? own : all;
  return value != 1 && value != 2 && value != 8;
}

/* Whether the address of a list entry is in the device's subnet. The interface may be down: it may
 * come up later. */
static bool shares_subnet(const struct ifaddrs *at, const struct harp_netdev *device)
{
  uint32_t mask = device->prefix ? htonl(UINT32_MAX << (32 - device->prefix)) : 0;
  if (!at->ifa_addr || at->ifa_addr->sa_family != AF_INET ||
      at->ifa_flags & (IFF_LOOPBACK | IFF_POINTOPOINT)) {
    return false;
  }
  uint32_t address = ((const struct sockaddr_in *)at->ifa_addr)->sin_addr.s_addr;
  return ((address ^ device->address) & mask) == 0;
}

static bool listed(const int *indexes, unsigned count, int index)
{
  for (unsigned i = 0; i < count; i++) {
    if (indexes[i] == index) {
      return true;
    }
  }
  return false;
}

/* Whether the interface may receive the device's frames. An interface with the same MAC address is
 * on top of the device, and passes the same frames up once more. */
static bool takes_frames(int index, const struct harp_netdev *device)
{
  struct harp_netdev other = {.index = index};
  char name[IF_NAMESIZE]; /* a list entry may have an alias such as eth0:1 */
  int hardware;
  return index > 0 && index != device->index && if_indextoname((unsigned)index, name) &&
         read_link(&other, &hardware) == 0 && hardware == ARPHRD_ETHER &&
         memcmp(other.mac, device->mac, 6) != 0 && answers_for_others(name);
}

unsigned harp_netdev_find_flux(const struct harp_netdev *device, int *others, unsigned max)
{
  struct ifaddrs *list;
  unsigned count = 0;
  if (getifaddrs(&list) < 0) {
    return 0;
  }
  for (const struct ifaddrs *at = list; at && count < max; at = at->ifa_next) {
    int index = shares_subnet(at, device) ? (int)if_nametoindex(at->ifa_name) : 0;
    if (!listed(others, count, index) && takes_frames(index, device)) {
      others[count++] = index;
    }
  }
  freeifaddrs(list);
  return count;
}

/* --- Use by a port --- */

static int check_device(const char *scheme, const char *name, const struct harp_netdev *device,
                        const struct harp_port_config *config, char *error)
{
  if (!device->up) {
    return harp_port_fail(error, -ENETDOWN, "%s:%s: the interface is down; ip link set %s up",
                          scheme, name, name);
  }
  if (!device->carrier) {
    return harp_port_fail(error, -ENETDOWN,
                          "%s:%s: the interface has no carrier; check the "
                          "cable, or the other end of a virtual one",
                          scheme, name);
  }
  if (config->mtu > device->mtu) {
    return harp_port_fail(error, -EINVAL,
                          "%s:%s: mtu = %u is more than the interface's %u; "
                          "lower it, or ip link set %s mtu %u",
                          scheme, name, config->mtu, device->mtu, name, config->mtu);
  }
  return 0;
}

static const uint8_t unset_mac[6];

bool harp_netdev_own_mac(const struct harp_netdev *device, const struct harp_port_config *config)
{
  return memcmp(config->mac, unset_mac, 6) != 0 && memcmp(config->mac, device->mac, 6) != 0;
}

static int check_address(const char *scheme, const char *name, const struct harp_netdev *device,
                         const struct harp_port_config *config, char *error)
{
  char text[INET_ADDRSTRLEN];
  if (!config->address && !device->address) {
    return harp_port_fail(error, -EADDRNOTAVAIL,
                          "%s:%s: the interface has no IPv4 address to "
                          "share; give it one, or set address = A.B.C.D/N to one that the kernel "
                          "does not have",
                          scheme, name);
  }
  if (!config->address && harp_netdev_own_mac(device, config)) {
    return harp_port_fail(error, -EINVAL,
                          "%s:%s: mac cannot be used with address = kernel; remove "
                          "mac, or set address = A.B.C.D/N",
                          scheme, name);
  }
  if (config->address && is_local(config->address)) {
    return harp_port_fail(error, -EADDRINUSE,
                          "%s:%s: the kernel already uses the address %s; "
                          "set address = kernel to share it, or choose one that ip route get does "
                          "not call local",
                          scheme, name, inet_ntop(AF_INET, &config->address, text, sizeof(text)));
  }
  return 0;
}

int harp_netdev_check(const char *scheme, const char *name, const struct harp_netdev *device,
                      const struct harp_port_config *config, char *error)
{
  int rc = check_device(scheme, name, device, config, error);
  return rc < 0 ? rc : check_address(scheme, name, device, config, error);
}

void harp_netdev_describe(const struct harp_netdev *device, const struct harp_port_config *config,
                          struct harp_port_info *info)
{
  bool own = config->address != 0;
  memcpy(info->mac, harp_netdev_own_mac(device, config) ? config->mac : device->mac, 6);
  uint32_t mtu = config->mtu ? config->mtu : device->mtu;
  info->mtu = (uint16_t)(mtu < UINT16_MAX ? mtu : UINT16_MAX);
  info->speed_mbps = device->speed_mbps;
  info->address = own ? config->address : device->address;
  info->prefix = own ? config->prefix : device->prefix;
  info->gateway = config->gateway ? config->gateway : device->gateway;
  info->shares_address = !own;
  snprintf(info->pci_path, sizeof(info->pci_path), "%s", device->pci_path);
}
