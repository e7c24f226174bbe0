/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages over sockets. Socket 0 carries each message's size. The payload follows there, or is cut
 * into slices of at least KERNEL_MIN_SLICE bytes that use the link's sockets in turn. Both sides
 * cut in the same way, so a slice needs no header. Every socket processes the messages in order.
 *
 * Thread: the link's progress thread. All I/O happens inside net_test.
 */
#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harp/bench/kernel/kernel.h"

static struct net_request *request_at(struct net_link *link, uint64_t sequence)
{
  return &link->request[sequence % KERNEL_REQUESTS];
}

static void cut(struct net_link *link, struct net_request *request)
{
  size_t sockets = (size_t)link->sockets;
  size_t part = (request->size + sockets - 1) / sockets;
  if (part < KERNEL_MIN_SLICE) {
    part = KERNEL_MIN_SLICE;
  }
  request->slices = 0;
  request->first_socket = (uint8_t)link->next_socket;
  for (size_t offset = 0; offset < request->size; offset += part) {
    size_t rest = request->size - offset;
    request->slice[request->slices++] = (struct kernel_slice){.offset = offset,
                                                              .length = rest < part ? rest : part};
  }
  request->left = request->size;
  request->sliced = true;
  link->next_socket = (link->next_socket + request->slices) % (unsigned)link->sockets;
}

static int post(struct net_link *link, void *data, size_t size, struct net_request **out)
{
  *out = NULL;
  if (link->error) {
    return link->error;
  }
  if (link->next - link->first == KERNEL_REQUESTS) {
    return 0;
  }
  struct net_request *request = request_at(link, link->next);
  *request = (struct net_request){
      .link = link,
      .sequence = link->next++,
      .data = data,
      .size = size,
  };
  *out = request;
  return 0;
}

int net_isend(struct net_link *link, const void *data, size_t size, struct net_region *region,
              struct net_request **out)
{
  if (!link->sends || size > UINT32_MAX) {
    return -EINVAL;
  }
  int error = post(link, (void *)(uintptr_t)data, size, out);
  if (*out) {
    (*out)->header = htole32((uint32_t)size);
    cut(link, *out);
  }
  return error;
}

int net_irecv(struct net_link *link, void *data, size_t capacity, struct net_region *region,
              enum net_completion completion, struct net_request **out)
{
  return link->sends ? -EINVAL : post(link, data, capacity, out);
}

/* Returns the slice of a message that this socket carries; NULL: none. */
static struct kernel_slice *slice_on(struct net_request *request, int socket)
{
  int sockets = request->link->sockets;
  int index = (socket - request->first_socket + sockets) % sockets;
  return index < request->slices ? &request->slice[index] : NULL;
}

static void account(struct net_request *request, struct kernel_slice *slice, size_t moved)
{
  slice->moved += moved;
  request->left -= moved;
}

/* Returns the bytes that send or recv moved; 0: it would block; else a negative errno. */
static ssize_t outcome(ssize_t moved)
{
  if (moved >= 0) {
    return moved;
  }
  return errno == EAGAIN || errno == EINTR ? 0 : -errno;
}

/* Both return 1 when this socket has finished the message, 0 if it would block, or a negative
 * errno. */
static int send_on(struct net_request *request, int socket)
{
  struct kernel_slice *slice = slice_on(request, socket);
  for (;;) {
    struct iovec part[2];
    struct msghdr message = {.msg_iov = part};
    size_t header = socket == 0 ? sizeof(request->header) - request->header_moved : 0;
    size_t payload = slice ? slice->length - slice->moved : 0;
    if (header) {
      part[message.msg_iovlen++] = (struct iovec){
          .iov_base = (char *)&request->header + request->header_moved, .iov_len = header};
    }
    if (payload) {
      part[message.msg_iovlen++] = (struct iovec){
          .iov_base = request->data + slice->offset + slice->moved, .iov_len = payload};
    }
    if (!message.msg_iovlen) {
      return 1;
    }
    ssize_t moved =
        outcome(sendmsg(request->link->fd[socket], &message, MSG_NOSIGNAL | MSG_DONTWAIT));
    if (moved <= 0) {
      return (int)moved;
    }
    size_t of_header = (size_t)moved < header ? (size_t)moved : header;
    request->header_moved += (uint32_t)of_header;
    if (slice && (size_t)moved > of_header) {
      account(request, slice, (size_t)moved - of_header);
    }
  }
}

static ssize_t receive(int fd, void *data, size_t length)
{
  ssize_t got = recv(fd, data, length, MSG_DONTWAIT);
  return got == 0 ? -ECONNRESET : outcome(got);
}

static int receive_header(struct net_request *request)
{
  while (request->header_moved < sizeof(request->header)) {
    ssize_t got = receive(request->link->fd[0], (char *)&request->header + request->header_moved,
                          sizeof(request->header) - request->header_moved);
    if (got <= 0) {
      return (int)got;
    }
    request->header_moved += (uint32_t)got;
  }
  size_t size = le32toh(request->header);
  if (size > request->size) {
    kernel_warn("NET/KERNEL: %s sends %zu bytes, the receive takes %zu: sizes or NCCL_ settings "
                "differ between the ranks",
                request->link->peer, size, request->size);
    return -EMSGSIZE;
  }
  request->size = size;
  cut(request->link, request);
  return 1;
}

static int receive_on(struct net_request *request, int socket)
{
  if (!request->sliced) {
    int known = socket == 0 ? receive_header(request) : 0;
    if (known <= 0) {
      return known;
    }
  }
  struct kernel_slice *slice = slice_on(request, socket);
  while (slice && slice->moved < slice->length) {
    ssize_t got = receive(request->link->fd[socket], request->data + slice->offset + slice->moved,
                          slice->length - slice->moved);
    if (got <= 0) {
      return (int)got;
    }
    account(request, slice, (size_t)got);
  }
  return 1;
}

/* Makes progress on one socket, up to and including the message with sequence last. */
static int progress_socket(struct net_link *link, int socket, uint64_t last)
{
  while (link->at[socket] <= last) {
    struct net_request *request = request_at(link, link->at[socket]);
    int done = link->sends ? send_on(request, socket) : receive_on(request, socket);
    if (done <= 0) {
      return done;
    }
    link->at[socket]++;
  }
  return 0;
}

static bool complete(const struct net_request *request)
{
  return request->sliced && request->left == 0 && request->header_moved == sizeof(request->header);
}

/* Resets the connections, so that the peer notices the failure at once. */
static void fail(struct net_link *link, int error)
{
  struct linger reset = {.l_onoff = 1};
  link->error = error;
  if (error != -EMSGSIZE) {
    kernel_warn("NET/KERNEL: connection with %s is lost: %s", link->peer, strerror(-error));
  }
  for (int i = 0; i < link->sockets; i++) {
    setsockopt(link->fd[i], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    close(link->fd[i]);
    link->fd[i] = -1;
  }
}

static void retire(struct net_request *request)
{
  struct net_link *link = request->link;
  request->finished = true;
  while (link->first < link->next && request_at(link, link->first)->finished) {
    link->first++;
  }
}

int net_test(struct net_request *request, int *done, size_t *size)
{
  struct net_link *link = request->link;
  for (int i = 0; i < link->sockets && !link->error && !complete(request); i++) {
    int error = progress_socket(link, i, request->sequence);
    if (error < 0) {
      fail(link, error);
    }
  }
  *done = complete(request);
  if (!*done) {
    return link->error;
  }
  *size = request->size;
  retire(request);
  return 0;
}
