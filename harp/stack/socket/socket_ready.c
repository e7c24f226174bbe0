/* SPDX-License-Identifier: Apache-2.0 */
/* The list of ready sockets. Each socket appears once, and the oldest event comes first. */
#include "harp/stack.h"
#include "harp/stack/socket/socket.h"
#include "harp/stack/stack_state.h"

void socket_ready(struct harp_socket *s)
{
  struct harp_stack *stack = s->stack;
  if (s->listed || s->waiting) {
    return;
  }
  int number = socket_number(s);
  s->listed = true;
  s->ready_next = -1;
  s->ready_previous = stack->ready_last;
  *(stack->ready_last < 0 ? &stack->ready_first
                          : &stack->sockets[stack->ready_last].ready_next) = number;
  stack->ready_last = number;
}

void socket_unlist(struct harp_socket *s)
{
  struct harp_stack *stack = s->stack;
  if (!s->listed) {
    return;
  }
  s->listed = false;
  *(s->ready_previous < 0 ? &stack->ready_first
                          : &stack->sockets[s->ready_previous].ready_next) = s->ready_next;
  *(s->ready_next < 0 ? &stack->ready_last
                      : &stack->sockets[s->ready_next].ready_previous) = s->ready_previous;
}

void socket_room_changed(struct harp_socket *s)
{
  if (!s->tcp || s->writable) {
    return;
  }
  if (socket_writable(s)) {
    s->writable = true;
    socket_ready(s);
  } else if (!socket_memory(s->stack)) {
    s->starved = s->stack->starved = true;
  }
}

/* All sockets share the packet buffers. A socket that frees some does not know which sockets wait,
 * so this function checks all of them. */
static void feed(struct harp_stack *stack)
{
  if (!stack->starved || !socket_memory(stack)) {
    return;
  }
  stack->starved = false;
  for (uint32_t i = 0; i < stack->socket_count; i++) {
    struct harp_socket *s = &stack->sockets[i];
    if (s->used && s->starved) {
      s->starved = false;
      socket_room_changed(s);
    }
  }
}

int harp_tcp_ready(struct harp_stack *stack, int *sockets, int max)
{
  int count = 0;
  feed(stack);
  while (count < max && stack->ready_first >= 0) {
    struct harp_socket *s = &stack->sockets[stack->ready_first];
    sockets[count++] = stack->ready_first;
    socket_unlist(s);
  }
  return count;
}
