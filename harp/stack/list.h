/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Intrusive lists, doubly linked and circular. The head is a link itself. A link that is in no
 * list points to itself. Insertion and removal take constant time.
 */
#ifndef HARP_STACK_LIST_H
#define HARP_STACK_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct harp_list {
  struct harp_list *next, *prev;
};

/* The object that contains the link as a member. */
#define HARP_CONTAINER(link, type, member) \
  ((type *)(void *)((char *)(link) - offsetof(type, member)))

static inline void list_init(struct harp_list *list) { list->next = list->prev = list; }

static inline bool list_empty(const struct harp_list *list) { return list->next == list; }

/* The first link, which was appended first; NULL: the list is empty. */
static inline struct harp_list *list_first(const struct harp_list *list)
{
  return list_empty(list) ? NULL : list->next;
}

/* Appends a link. It must be in no list. */
static inline void list_append(struct harp_list *list, struct harp_list *link)
{
  link->prev = list->prev;
  link->next = list;
  list->prev->next = link;
  list->prev = link;
}

/* Removes a link from its list, if it is in one. */
static inline void list_remove(struct harp_list *link)
{
  link->prev->next = link->next;
  link->next->prev = link->prev;
  list_init(link);
}

/* Removes a link from its list, if it is in one, and appends it to another. */
static inline void list_move(struct harp_list *list, struct harp_list *link)
{
  list_remove(link);
  list_append(list, link);
}

#endif
