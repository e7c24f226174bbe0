/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/agent/agent_reply.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CLIENT = STDIN_FILENO };

/* Tells the agent which sockets the client has, by their inodes. */
static void list_sockets(const int *fds, unsigned count)
{
  struct stat file;
  for (unsigned i = 0; i < count; i++) {
    if (fstat(fds[i], &file) == 0 && S_ISSOCK(file.st_mode)) {
      printf("socket %lu\n", (unsigned long)file.st_ino);
    }
  }
}

/* Tells the agent the interface's address. Later it holds the job's ports at this address. */
static void print_address(uint32_t address)
{
  char text[INET_ADDRSTRLEN];
  if (address) {
    printf("address %s\n", inet_ntop(AF_INET, &address, text, sizeof(text)));
  }
}

enum agent_status agent_reply(struct harp_agent_reply *reply, const int *fds, unsigned count)
{
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(HARP_AGENT_DESCRIPTORS * sizeof(int))];
  } control = {0};
  struct iovec piece = {reply, sizeof(*reply)};
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
  reply->magic = HARP_AGENT_MAGIC;
  reply->version = HARP_AGENT_VERSION;
  reply->descriptors = (uint16_t)count;
  if (count > 0) {
    message.msg_control = &control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(header), fds, count * sizeof(int));
  }
  if (sendmsg(CLIENT, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    return AGENT_GONE;
  }
  list_sockets(fds, count);
  print_address(reply->address);
  return AGENT_DONE;
}

enum agent_status agent_refuse(struct harp_agent_reply *reply, int rc)
{
  fprintf(stderr, "%s\n", reply->error);
  reply->result = rc;
  return agent_reply(reply, NULL, 0) == AGENT_DONE ? AGENT_REFUSED : AGENT_GONE;
}

int agent_lock_failed(struct harp_agent_reply *reply, const char *device, int rc)
{
  snprintf(reply->error, sizeof(reply->error), "%s: cannot lock a filter: %s", device,
           strerror(-rc));
  return rc;
}

bool agent_is_occupied(uint32_t address, unsigned first, unsigned last)
{
  for (unsigned port = first; port <= last; port++) {
    struct sockaddr_in name = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = address};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool used = fd < 0 || bind(fd, (struct sockaddr *)&name, sizeof(name)) < 0;
    if (fd >= 0) {
      close(fd);
    }
    if (used) {
      return true;
    }
  }
  return false;
}
