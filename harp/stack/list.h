/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Intrusive lists, doubly linked and circular: a head is a link of its own, and what is in none
 * links to itself. Putting something in and taking it out cost the same in any list.
 */
#ifndef HARP_STACK_LIST_H
#define HARP_STACK_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct harp_list {
  struct harp_list *next, *prev;
};

/* The object that a link is a member of. */
#define HARP_CONTAINER(link, type, member) \
  ((type *)(void *)((char *)(link) - offsetof(type, member)))

static inline void list_init(struct harp_list *list) { list->next = list->prev = list; }

static inline bool list_empty(const struct harp_list *list) { return list->next == list; }

/* The link that has been in the list for longest; NULL: it is empty. */
static inline struct harp_list *list_first(const struct harp_list *list)
{
  return list_empty(list) ? NULL : list->next;
}

/* Behind all others. The link must be in no list. */
static inline void list_append(struct harp_list *list, struct harp_list *link)
{
  link->prev = list->prev;
  link->next = list;
  list->prev->next = link;
  list->prev = link;
}

/* Out of its list, if it is in one. */
static inline void list_remove(struct harp_list *link)
{
  link->prev->next = link->next;
  link->next->prev = link->prev;
  list_init(link);
}

/* Behind all others of a list, from wherever it was. */
static inline void list_move(struct harp_list *list, struct harp_list *link)
{
  list_remove(link);
  list_append(list, link);
}

#endif
