/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attaches a device by name. HARP checks known causes of failure first, because DPDK's own error
 * messages are not helpful.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/capability.h>
#include <poll.h>
#include <pthread.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "dpdk_glue/descriptor.h"
#include "dpdk_glue/dpdk/eal.h"
#include "dpdk_glue/dpdk/ethdev.h"
#include "dpdk_glue/fail.h"

enum {
  QUEUE_MIB = 48, /* most memory of one queue, with buffers for large segments */
  BASE_MIB = 32,
  ADDRESS_BITS = 47,    /* of virtual addresses in a process */
  PEER_WAIT_MS = 10000, /* wait for the peer of a software link */
};

static void function_path(const struct ethdev_spec *spec, const char *what, char *out, size_t size)
{
  snprintf(out, size, "/sys/bus/pci/devices/%s%s%s", spec->name, *what ? "/" : "", what);
}

/* Reads the last path component of a link in the function's folder; "" if there is none. */
static void read_link(const struct ethdev_spec *spec, const char *what, char *out, size_t size)
{
  char path[160], target[256];
  function_path(spec, what, path, sizeof(path));
  ssize_t length = readlink(path, target, sizeof(target) - 1);
  target[length > 0 ? length : 0] = '\0';
  const char *slash = strrchr(target, '/');
  snprintf(out, size, "%s", slash ? slash + 1 : "");
}

/* Reads the first word of a file in the function's folder; "" if there is no file. */
static void read_text(const struct ethdev_spec *spec, const char *what, char *out, size_t size)
{
  char path[160];
  function_path(spec, what, path, sizeof(path));
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t length = fd < 0 ? 0 : read(fd, out, size - 1);
  harp_descriptor_close(fd);
  out[length > 0 ? length : 0] = '\0';
  out[strcspn(out, " \n")] = '\0';
}

/* Checks that this process can open the file. */
static int try_file(const struct ethdev_spec *spec, const char *path, char *error)
{
  int fd = open(path, O_RDWR | O_CLOEXEC);
  int code = errno;
  if (fd >= 0) {
    close(fd);
    return 0;
  }
  if (code == EBUSY) {
    return harp_port_fail(error, -EBUSY,
                          "dpdk:%s: another process uses the device (%s is busy); "
                          "end it, or give this process another NIC",
                          spec->name, path);
  }
  return harp_port_fail(error, -code,
                        "dpdk:%s: cannot open %s: %s; give this user access to it, "
                        "or run as root",
                        spec->name, path, strerror(code));
}

/* Returns the IOMMU's address width in bits; a virtual IOMMU may have less than a process. 0:
 * unknown. */
static unsigned iommu_bits(const struct ethdev_spec *spec)
{
  char path[192];
  unsigned long long capabilities = 0;
  function_path(spec, "iommu/intel-iommu/cap", path, sizeof(path));
  FILE *file = fopen(path, "re");
  if (!file) {
    return 0;
  }
  if (fscanf(file, "%llx", &capabilities) != 1) {
    capabilities = 0;
  }
  fclose(file);
  return capabilities ? (unsigned)(capabilities >> 16 & 63) + 1 : 0;
}

/* Returns true if VFIO accepts this other device of the group: unbound, bound to a
 * VFIO-compatible driver, or a bridge. */
static bool stands_aside(const char *driver, const char *class)
{
  return !driver[0] || strcmp(driver, "vfio-pci") == 0 || strcmp(driver, "pci-stub") == 0 ||
         strncmp(class, "0x06", 4) == 0;
}

/* VFIO needs a group as a whole and refuses it while a kernel driver uses one of its devices. */
static int look_at_group(const struct ethdev_spec *spec, const char *group, char *error)
{
  char folder[96];
  int rc = 0;
  snprintf(folder, sizeof(folder), "/sys/kernel/iommu_groups/%s/devices", group);
  DIR *members = opendir(folder);
  for (struct dirent *entry; rc == 0 && members && (entry = readdir(members));) {
    struct ethdev_spec other = {.pci = true};
    char driver[64], class[16] = "";
    snprintf(other.name, sizeof(other.name), "%.63s", entry->d_name);
    read_link(&other, "driver", driver, sizeof(driver));
    read_text(&other, "class", class, sizeof(class));
    if (!stands_aside(driver, class)) {
      rc = harp_port_fail(error, -EBUSY,
                          "dpdk:%s: shares IOMMU group %s with %s, which is bound to "
                          "%s, and VFIO needs the whole group: name that device "
                          "to harp setup as well, or move the card to another slot",
                          spec->name, group, other.name, driver);
    }
  }
  if (members) {
    closedir(members);
  }
  return rc;
}

static int look_at_vfio(struct ethdev_spec *spec, char *error)
{
  char group[32], path[96];
  read_link(spec, "iommu_group", group, sizeof(group));
  if (!group[0]) {
    return harp_port_fail(error, -ENODEV,
                          "dpdk:%s: bound to vfio-pci, but in no IOMMU group; "
                          "switch the IOMMU on, or allow VFIO without one (harp setup)",
                          spec->name);
  }
  snprintf(path, sizeof(path), "/dev/vfio/%s", group);
  spec->iommu = access(path, F_OK) == 0;
  if (!spec->iommu) {
    snprintf(path, sizeof(path), "/dev/vfio/noiommu-%s", group);
  }
  if (access(path, F_OK) < 0) {
    return harp_port_fail(error, -ENOENT,
                          "dpdk:%s: /dev/vfio/%s does not exist: a container needs "
                          "it, and /dev/vfio/vfio (docker run --device, or a privileged pod)",
                          spec->name, group);
  }
  unsigned bits = iommu_bits(spec);
  spec->physical = !spec->iommu || (bits && bits < ADDRESS_BITS);
  int rc = try_file(spec, path, error);
  if (rc == 0) {
    rc = try_file(spec, "/dev/vfio/vfio", error);
  }
  return rc == 0 && spec->iommu ? look_at_group(spec, group, error) : rc;
}

/* VFIO counts mapped memory against RLIMIT_MEMLOCK unless the process has CAP_IPC_LOCK. */
static bool may_lock_all(void)
{
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3] = {0};
  struct rlimit limit = {0};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY) {
    return true;
  }
  return syscall(SYS_capget, &header, caps) == 0 && caps[0].effective & 1u << CAP_IPC_LOCK;
}

static int look_at_limit(const struct ethdev_spec *spec, char *error)
{
  struct rlimit limit = {0};
  uint32_t needed = harp_eal_mib();
  if (!spec->iommu || may_lock_all() || getrlimit(RLIMIT_MEMLOCK, &limit) < 0 ||
      limit.rlim_cur >> 20 >= needed) {
    return 0;
  }
  return harp_port_fail(error, -EPERM,
                        "dpdk:%s: HARP must map %u MiB for the device, but this process may "
                        "lock only %lu: give it CAP_IPC_LOCK, or raise the limit (ulimit -l "
                        "unlimited, docker run --ulimit memlock=-1)",
                        spec->name, needed, (unsigned long)(limit.rlim_cur >> 20));
}

static int look_at_uio(struct ethdev_spec *spec, const char *driver, char *error)
{
  spec->physical = true;
  snprintf(spec->uio, sizeof(spec->uio), "%.23s", driver);
  if (geteuid() != 0) {
    return harp_port_fail(error, -EPERM,
                          "dpdk:%s: only root can use a device bound to %s; bind it "
                          "to vfio-pci, or run as root",
                          spec->name, driver);
  }
  return 0;
}

static int look_at_pci(struct ethdev_spec *spec, char *error)
{
  char path[160], driver[64];
  function_path(spec, "", path, sizeof(path));
  if (access(path, F_OK) < 0) {
    return harp_port_fail(error, -ENODEV, "dpdk:%s: there is no such PCI device; see lspci -D",
                          spec->name);
  }
  read_link(spec, "driver", driver, sizeof(driver));
  if (strcmp(driver, "vfio-pci") == 0) {
    return look_at_vfio(spec, error);
  }
  if (strcmp(driver, "uio_pci_generic") == 0 || strcmp(driver, "igb_uio") == 0) {
    return look_at_uio(spec, driver, error);
  }
  return harp_port_fail(error, -EBUSY,
                        "dpdk:%s: the NIC is %s%s; bind it to vfio-pci (harp setup "
                        "does)",
                        spec->name, driver[0] ? "bound to the kernel's driver " : "",
                        driver[0] ? driver : "bound to no driver");
}

/* Tries to connect. 0: a process listens there. -1: none does; errno says why. */
static int try_socket(const char *path)
{
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  int rc = fd < 0 ? -1 : connect(fd, (struct sockaddr *)&address, sizeof(address));
  int code = errno;
  harp_descriptor_close(fd);
  errno = code;
  return rc;
}

/* Removes a socket that no process listens on, as a killed process leaves it. */
static int make_way(const struct ethdev_spec *spec, char *error)
{
  char folder[sizeof(spec->socket)];
  snprintf(folder, sizeof(folder), "%s", spec->socket);
  if (access(dirname(folder), W_OK) < 0) {
    return harp_port_fail(error, -errno,
                          "dpdk:%.60s: cannot create a socket at %.107s: %s; name a "
                          "folder that exists and is writable",
                          spec->name, spec->socket, strerror(errno));
  }
  if (access(spec->socket, F_OK) < 0) {
    return 0;
  }
  if (try_socket(spec->socket) == 0 || errno != ECONNREFUSED) {
    return harp_port_fail(error, -EBUSY,
                          "dpdk:%.60s: %.107s exists, and a process may listen there: end "
                          "it, or choose another path",
                          spec->name, spec->socket);
  }
  unlink(spec->socket);
  return 0;
}

/* virtio_user connects only once, but the other side may still be starting. */
static int wait_for_server(const struct ethdev_spec *spec, char *error)
{
  for (unsigned waited = 0; access(spec->socket, F_OK) < 0; waited += 20) {
    if (waited >= PEER_WAIT_MS) {
      return harp_port_fail(error, -ENOENT,
                            "dpdk:%.60s: no process has listened at %.107s for %u s: "
                            "start the other side (net_vhost), or correct the path",
                            spec->name, spec->socket, PEER_WAIT_MS / 1000);
    }
    usleep(20000);
  }
  return 0;
}

static int look_at_socket(const struct ethdev_spec *spec, char *error)
{
  if (!spec->socket[0]) {
    return 0;
  }
  if (spec->serves) {
    return make_way(spec, error);
  }
  return strncmp(spec->name, "virtio_user", 11) == 0 ? wait_for_server(spec, error) : 0;
}

int harp_ethdev_probe(struct ethdev_port *ethdev, char *error)
{
  struct ethdev_spec *spec = &ethdev->spec;
  int rc = spec->pci ? look_at_pci(spec, error) : look_at_socket(spec, error);
  if (rc == 0 && spec->pci) {
    rc = harp_ethdev_owner_take(&ethdev->owner, spec, error);
  }
  if (rc < 0) {
    return rc;
  }
  struct harp_eal_request request = {
      .device = spec->name,
      .hugepages = ethdev->config.hugepages,
      .need_mib = BASE_MIB + QUEUE_MIB * ethdev->queue_count,
      .physical = spec->physical,
  };
  rc = harp_eal_start(&request, error);
  return rc < 0 ? rc : look_at_limit(spec, error);
}

static int attach_failed(const struct ethdev_spec *spec, int code, char *error)
{
  const char *said = harp_eal_complaint();
  if (strstr(said, "DMA")) {
    return harp_port_fail(error, code,
                          "dpdk:%.100s: cannot map HARP's memory in the IOMMU (%s): "
                          "raise the limit on locked memory (CAP_IPC_LOCK, ulimit -l unlimited); "
                          "the kernel's log (dmesg) may say more",
                          spec->name, said);
  }
  return harp_port_fail(error, code, "dpdk:%.150s: DPDK cannot open the device: %s%s%s", spec->name,
                        strerror(-code), *said ? "; DPDK says " : "", said);
}

/*
 * A virtio_user server waits for its peer without a limit. This watchdog connects in the peer's
 * place after a timeout, which ends the wait.
 */
struct watchdog {
  const char *socket;
  int done; /* eventfd */
  bool ended;
};

static void *open_watchdog(void *argument)
{
  struct watchdog *watchdog = argument;
  struct pollfd done = {.fd = watchdog->done, .events = POLLIN};
  for (int wait = PEER_WAIT_MS; poll(&done, 1, wait) == 0; wait = 200) {
    watchdog->ended = true;
    try_socket(watchdog->socket);
  }
  return NULL;
}

static int probe(const struct ethdev_spec *spec, char *error)
{
  if (!spec->serves || strncmp(spec->name, "virtio_user", 11) != 0) {
    int rc = rte_dev_probe(spec->devargs);
    return rc < 0 ? attach_failed(spec, rc, error) : 0;
  }
  struct watchdog watchdog = {.socket = spec->socket, .done = eventfd(0, EFD_CLOEXEC)};
  pthread_t thread;
  if (watchdog.done < 0 || pthread_create(&thread, NULL, open_watchdog, &watchdog) != 0) {
    return harp_port_fail(error, -EAGAIN,
                          "dpdk:%.150s: no thread or no descriptor left: raise "
                          "the limits (ulimit -u, -n)",
                          spec->name);
  }
  int rc = rte_dev_probe(spec->devargs);
  eventfd_write(watchdog.done, 1);
  pthread_join(thread, NULL);
  close(watchdog.done);
  if (rc < 0 && watchdog.ended) {
    return harp_port_fail(error, -ENOTCONN,
                          "dpdk:%.60s: no peer connected to %.107s within %u s: start "
                          "the other side (net_vhost with client=1)",
                          spec->name, spec->socket, PEER_WAIT_MS / 1000);
  }
  return rc < 0 ? attach_failed(spec, rc, error) : 0;
}

int harp_ethdev_attach(struct ethdev_port *ethdev, char *error)
{
  const struct ethdev_spec *spec = &ethdev->spec;
  struct rte_eth_dev_info info;
  harp_eal_forget_complaint();
  if (rte_eth_dev_get_port_by_name(spec->name, &ethdev->id) == 0) {
    return harp_port_fail(error, -EBUSY,
                          "dpdk:%.100s: this process already uses the device; each "
                          "ztcp*.conf needs its own",
                          spec->name);
  }
  int rc = probe(spec, error);
  if (rc < 0) {
    return rc;
  }
  rc = rte_eth_dev_get_port_by_name(spec->name, &ethdev->id);
  if (rc < 0) {
    return harp_port_fail(error, -ENODEV,
                          "dpdk:%.150s: HARP has no driver for this device; it "
                          "has virtio, vhost, ena, gve, iavf, ice, i40e, ixgbe, vmxnet3 and memif",
                          spec->name);
  }
  rc = rte_eth_dev_info_get(ethdev->id, &info);
  if (rc < 0) {
    return attach_failed(spec, rc, error);
  }
  ethdev->device = info.device;
  if (spec->pci) {
    harp_ethdev_owner_attached(&ethdev->owner);
  }
  return 0;
}

void harp_ethdev_detach(struct ethdev_port *ethdev)
{
  if (!ethdev->device) {
    return;
  }
  harp_ethdev_owner_detaching(&ethdev->owner);
  rte_eth_dev_stop(ethdev->id);
  rte_eth_dev_close(ethdev->id);
  rte_dev_remove(ethdev->device);
  ethdev->device = NULL;
  /* vhost removes its socket, virtio_user does not */
  if (ethdev->spec.serves) {
    unlink(ethdev->spec.socket);
  }
}
