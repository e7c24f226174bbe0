/* SPDX-License-Identifier: Apache-2.0 */
/* The list of ready sockets. Each socket appears once, and the oldest event comes first. */
#include "harp/stack.h"
#include "harp/stack/flow.h"
#include "harp/stack/socket/socket.h"

void socket_ready(struct harp_socket *s)
{
  struct harp_socket_table *table = s->table;
  if (s->listed || s->waiting) {
    return;
  }
  int number = socket_number(s);
  s->listed = true;
  s->ready_next = -1;
  s->ready_previous = table->ready_last;
  *(table->ready_last < 0 ? &table->ready_first
                          : &table->sockets[table->ready_last].ready_next) = number;
  table->ready_last = number;
}

void socket_unlist(struct harp_socket *s)
{
  struct harp_socket_table *table = s->table;
  if (!s->listed) {
    return;
  }
  s->listed = false;
  *(s->ready_previous < 0 ? &table->ready_first
                          : &table->sockets[s->ready_previous].ready_next) = s->ready_next;
  *(s->ready_next < 0 ? &table->ready_last
                      : &table->sockets[s->ready_next].ready_previous) = s->ready_previous;
}

void socket_room_changed(struct harp_socket *s)
{
  if (!s->tcp || s->writable) {
    return;
  }
  if (socket_writable(s)) {
    s->writable = true;
    socket_ready(s);
  } else if (!harp_flow_has_buffer(s->table->stack)) {
    s->starved = s->table->starved = true;
  }
}

/* All sockets share the packet buffers. A socket that frees some does not know which sockets wait,
 * so this function checks all of them. */
static void feed(struct harp_socket_table *table)
{
  if (!table->starved || !harp_flow_has_buffer(table->stack)) {
    return;
  }
  table->starved = false;
  for (uint32_t i = 0; i < table->count; i++) {
    struct harp_socket *s = &table->sockets[i];
    if (s->used && s->starved) {
      s->starved = false;
      socket_room_changed(s);
    }
  }
}

int harp_tcp_ready(struct harp_stack *stack, int *sockets, int max)
{
  struct harp_socket_table *table = harp_stack_sockets(stack);
  int count = 0;
  feed(table);
  while (count < max && table->ready_first >= 0) {
    struct harp_socket *s = &table->sockets[table->ready_first];
    sockets[count++] = table->ready_first;
    socket_unlist(s);
  }
  return count;
}
