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
#include <time.h>
#include <unistd.h>

#include "dpdk_glue/descriptor.h"
#include "dpdk_glue/fail.h"

enum {
  TIMEOUT_S = 15,    /* for one step: connect, send, receive */
  RESTART_MS = 5000, /* an agent that restarts listens again within this time */
  RETRY_MS = 50,
};

/* --- One exchange --- */

void harp_agent_init(struct harp_agent *agent)
{
  memset(agent, 0, sizeof(*agent));
  agent->fd = -1;
}

void harp_agent_close(const struct harp_agent *agent) { harp_descriptor_close(agent->fd); }

static time_t now_s(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

/* Whether a signal has interrupted a step that is to be repeated. A socket with a timeout ignores
 * SA_RESTART, and SIGCONT interrupts it even without a handler. */
static bool is_interrupted(time_t begun) { return errno == EINTR && now_s() - begun < TIMEOUT_S; }

/* The error of a step. EINTR: signals have interrupted it again and again. */
static int step_error(void) { return errno == EAGAIN || errno == EINTR ? -ETIMEDOUT : -errno; }

static int dial(struct harp_agent *agent)
{
  struct sockaddr_un name = {.sun_family = AF_UNIX};
  const struct timeval timeout = {.tv_sec = TIMEOUT_S};
  harp_agent_close(agent);
  agent->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (agent->fd < 0) {
    return -errno;
  }
  memcpy(name.sun_path, agent->path, sizeof(name.sun_path));
  setsockopt(agent->fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  setsockopt(agent->fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  time_t begun = now_s();
  int rc;
  do {
    rc = connect(agent->fd, (struct sockaddr *)&name, sizeof(name));
  } while (rc < 0 && is_interrupted(begun));
  return rc < 0 ? step_error() : 0;
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
static int receive(int fd, struct harp_agent_reply *reply, int *fds)
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
  time_t begun = now_s();
  ssize_t got;
  do {
    got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && is_interrupted(begun));
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

static int exchange(struct harp_agent *agent, const char *request, struct harp_agent_reply *reply,
                    int *fds)
{
  memset(reply, 0, sizeof(*reply));
  time_t begun = now_s();
  ssize_t sent;
  do {
    sent = send(agent->fd, request, strlen(request), MSG_NOSIGNAL);
  } while (sent < 0 && is_interrupted(begun));
  return sent < 0 ? step_error() : receive(agent->fd, reply, fds);
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
           "\"mac\":\"%s\",\"mtu\":%u,\"ports\":[%u,%u]}",
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
         rc == -ENOENT;
}

/* As exchange, and waits for an agent that restarts. */
static int exchange_again(struct harp_agent *agent, const char *request,
                          struct harp_agent_reply *reply, int *fds)
{
  const struct timespec pause = {.tv_nsec = RETRY_MS * 1000000L};
  int rc = exchange(agent, request, reply, fds);
  for (int waited = 0; is_lost(rc) && waited < RESTART_MS; waited += RETRY_MS) {
    rc = dial(agent);
    if (rc == 0) {
      rc = exchange(agent, request, reply, fds);
    }
    if (is_lost(rc)) {
      nanosleep(&pause, NULL);
    }
  }
  return rc;
}

int harp_agent_listen(struct harp_agent *agent, struct silent_block *block, int *fds)
{
  char request[HARP_AGENT_REQUEST];
  struct harp_agent_reply reply;
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
