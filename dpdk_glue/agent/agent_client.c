/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/agent/agent_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "dpdk_glue/clock.h"
#include "dpdk_glue/descriptor.h"
#include "dpdk_glue/fail.h"

enum {
  /* Of one exchange: connect, send, receive. */
  OPEN_MS = 15000,
  LISTEN_MS = 1000, /* the caller may be a poller */
  SILENT_MS = 1000, /* after a request without an answer, the next ones fail at once */
};

/* --- One exchange --- */

void harp_agent_init(struct harp_agent *agent)
{
  memset(agent, 0, sizeof(*agent));
  agent->fd = -1;
}

void harp_agent_close(const struct harp_agent *agent) { harp_descriptor_close(agent->fd); }

static void begin(struct harp_agent *agent, int timeout_ms)
{
  agent->deadline_ms = harp_monotonic_ms() + timeout_ms;
}

/* Bounds the next step by the end of the exchange. A socket with a timeout ignores SA_RESTART, and
 * SIGCONT interrupts it even without a handler: a caller repeats an interrupted step. false after
 * the end. This process may have been stopped since then, and its reply may be there. */
static bool may_wait(const struct harp_agent *agent)
{
  int64_t left = agent->deadline_ms - harp_monotonic_ms();
  if (left <= 0) {
    return false;
  }
  const struct timeval timeout = {.tv_sec = left / 1000, .tv_usec = left % 1000 * 1000};
  setsockopt(agent->fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  setsockopt(agent->fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  return true;
}

/* Flags of a step: it does not wait after the end. */
static int step_flags(const struct harp_agent *agent) { return may_wait(agent) ? 0 : MSG_DONTWAIT; }

/* The error of a step. */
static int step_error(void) { return errno == EAGAIN ? -ETIMEDOUT : -errno; }

static int dial(struct harp_agent *agent)
{
  struct sockaddr_un name = {.sun_family = AF_UNIX};
  harp_agent_close(agent);
  agent->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (agent->fd < 0) {
    return -errno;
  }
  memcpy(name.sun_path, agent->path, sizeof(name.sun_path));
  while (may_wait(agent)) {
    if (connect(agent->fd, (struct sockaddr *)&name, sizeof(name)) == 0) {
      return 0;
    }
    if (errno != EINTR) {
      return step_error();
    }
  }
  return -ETIMEDOUT;
}

/* Stores the descriptors of a message and returns their number. */
static int take_descriptors(struct msghdr *message, int *fds)
{
  int count = 0;
  for (struct cmsghdr *at = CMSG_FIRSTHDR(message); at; at = CMSG_NXTHDR(message, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    size_t bytes = at->cmsg_len - CMSG_LEN(0);
    memcpy(fds + count, CMSG_DATA(at), bytes);
    count += (int)(bytes / sizeof(int));
  }
  return count;
}

static void close_all(const int *fds, int count)
{
  for (int i = 0; i < count; i++) {
    close(fds[i]);
  }
}

/* Receives a reply. Returns the number of descriptors, or a negative errno. */
static int receive(const struct harp_agent *agent, struct harp_agent_reply *reply, int *fds)
{
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(HARP_AGENT_DESCRIPTORS * sizeof(int))];
  } control;
  struct iovec piece = {reply, sizeof(*reply)};
  struct msghdr message = {
      .msg_iov = &piece,
      .msg_iovlen = 1,
      .msg_control = &control,
      .msg_controllen = sizeof(control),
  };
  ssize_t got;
  do {
    got = recvmsg(agent->fd, &message, MSG_CMSG_CLOEXEC | step_flags(agent));
  } while (got < 0 && errno == EINTR);
  if (got <= 0) {
    return got == 0 ? -ECONNRESET : step_error();
  }
  int count = take_descriptors(&message, fds);
  bool whole = (size_t)got > offsetof(struct harp_agent_reply, error) &&
               reply->magic == HARP_AGENT_MAGIC && reply->descriptors == count;
  if (whole && reply->result == 0) {
    return count;
  }
  close_all(fds, count);
  reply->error[sizeof(reply->error) - 1] = '\0';
  if (whole) {
    return reply->result < 0 ? reply->result : -EPROTO;
  }
  /* The kernel drops descriptors for which the process has no numbers left. */
  return message.msg_flags & MSG_CTRUNC ? -EMFILE : -EPROTO;
}

static int exchange(const struct harp_agent *agent, const char *request,
                    struct harp_agent_reply *reply, int *fds)
{
  memset(reply, 0, sizeof(*reply));
  ssize_t sent;
  do {
    sent = send(agent->fd, request, strlen(request), MSG_NOSIGNAL | step_flags(agent));
  } while (sent < 0 && errno == EINTR);
  return sent < 0 ? step_error() : receive(agent, reply, fds);
}

/* --- Requests --- */

/* Whether the text can stand in a JSON string as it is. */
static bool is_plain(const char *text)
{
  for (; *text; text++) {
    if (*text < ' ' || *text > '~' || *text == '"' || *text == '\\') {
      return false;
    }
  }
  return true;
}

static void write_open(char *request, const struct harp_agent *agent,
                       const struct harp_port_config *config)
{
  char address[INET_ADDRSTRLEN] = "kernel", mac[18] = "";
  static const uint8_t unset[6];
  const uint8_t *m = config->mac;
  if (config->address) {
    inet_ntop(AF_INET, &config->address, address, sizeof(address));
  }
  if (memcmp(m, unset, sizeof(unset)) != 0) {
    snprintf(mac, sizeof(mac), "%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5]);
  }
  snprintf(request, HARP_AGENT_REQUEST,
           "{\"version\":%d,\"op\":\"open\",\"device\":\"%s\",\"queues\":%u,\"address\":\"%s\","
           "\"mac\":\"%s\",\"mtu\":%u,\"ports\":[%u,%u],\"vnet\":true}",
           HARP_AGENT_VERSION, agent->device, config->queues, address, mac, config->mtu,
           config->ports_first, config->ports_last);
}

static int no_agent(const struct harp_agent *agent, int rc, char *error)
{
  return harp_port_fail(error, rc,
                        "%s: no answer from the agent at %s: %s; start harp agent on the node and "
                        "mount its socket, or set HARP_AGENT= (empty) to use HARP's own privileges",
                        agent->device, agent->path, strerror(-rc));
}

int harp_agent_open(struct harp_agent *agent, const char *scheme,
                    const struct harp_port_config *config, struct harp_agent_reply *reply, int *fds,
                    char *error)
{
  char request[HARP_AGENT_REQUEST];
  if (strlen(config->agent) >= sizeof(agent->path)) {
    return harp_port_fail(error, -ENAMETOOLONG,
                          "HARP_AGENT=%.40s…: longer than %zu bytes; name a shorter path",
                          config->agent, sizeof(agent->path) - 1);
  }
  memcpy(agent->path, config->agent, strlen(config->agent) + 1);
  int length = snprintf(agent->device, sizeof(agent->device), "%s:%s", scheme, config->device);
  if (length >= (int)sizeof(agent->device) || !is_plain(agent->device)) {
    return harp_port_fail(error, -EINVAL, "%s:%.40s: not the name of an interface", scheme,
                          config->device);
  }
  write_open(request, agent, config);
  begin(agent, OPEN_MS);
  int rc = dial(agent);
  if (rc < 0) {
    return no_agent(agent, rc, error);
  }
  rc = exchange(agent, request, reply, fds);
  if (rc < 0 && reply->error[0]) {
    return harp_port_fail(error, rc, "%s", reply->error);
  }
  if (rc < 0) {
    return no_agent(agent, rc, error);
  }
  agent->ports_first = reply->ports_first;
  agent->ports_last = reply->ports_last;
  return rc;
}

/* Whether the connection to the agent has ended. */
static bool is_lost(int rc)
{
  return rc == -ECONNRESET || rc == -EPIPE || rc == -ENOTCONN || rc == -ECONNREFUSED ||
         rc == -ENOENT || rc == -EBADF;
}

/* As exchange, also with an agent that has restarted. -ETIMEDOUT: there is none now. */
static int exchange_again(struct harp_agent *agent, const char *request,
                          struct harp_agent_reply *reply, int *fds)
{
  if (harp_monotonic_ms() < agent->silent_until_ms) {
    return -ETIMEDOUT;
  }
  begin(agent, LISTEN_MS);
  int rc = exchange(agent, request, reply, fds);
  if (is_lost(rc)) {
    rc = dial(agent);
    rc = rc < 0 ? rc : exchange(agent, request, reply, fds);
  }
  if (rc == -ETIMEDOUT) {
    agent->silent_until_ms = harp_monotonic_ms() + SILENT_MS;
  }
  return is_lost(rc) ? -ETIMEDOUT : rc;
}

int harp_agent_listen(struct harp_agent *agent, struct silent_block *block, int *fds)
{
  char request[HARP_AGENT_REQUEST];
  struct harp_agent_reply reply = {0};
  int received[HARP_AGENT_DESCRIPTORS];
  unsigned room = block->limit - block->first + 1u;
  unsigned count = block->count < room ? block->count : room;
  snprintf(request, sizeof(request),
           "{\"version\":%d,\"op\":\"listen\",\"device\":\"%s\",\"grant\":[%u,%u],\"first\":%u,"
           "\"count\":%u}",
           HARP_AGENT_VERSION, agent->device, agent->ports_first, agent->ports_last, block->first,
           count);
  int rc = exchange_again(agent, request, &reply, received);
  if (rc == 0 || rc > (int)count || (rc > 0 && reply.port != block->first)) {
    close_all(received, rc);
    rc = -EPROTO;
  }
  if (rc < 0) {
    /* The reply may still come, or was not that of this request. The next one would get the wrong
     * reply on this connection. */
    if (!reply.error[0]) {
      shutdown(agent->fd, SHUT_RDWR);
    }
    return rc;
  }
  memcpy(fds, received, (size_t)rc * sizeof(*fds));
  return rc;
}
