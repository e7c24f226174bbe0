/* SPDX-License-Identifier: Apache-2.0 */
/* The application of the link fuzzer: its calls of the plugin, and checks of the results. */
#include <string.h>

#include "tests/fuzz/link_scene.h"

static void take_back(struct line *line, struct post *post)
{
  if (post->region) {
    net_deregister(line->link, post->region);
    post->region = NULL;
  }
  scene->posted_bytes -= post->size;
  free(post->data);
  post->data = NULL;
}

static void check_received(const struct line *line, const struct post *post, size_t size)
{
  FUZZ_EXPECT(size <= post->size);
  FUZZ_EXPECT(scene->wild || post->message + 1 != conversation(line->link->id)->corrupted);
  FUZZ_EXPECT(scene->wild || memcmp(post->data, message_at(post->message, 0), size) == 0);
  for (size_t i = size; i < post->size; i++) {
    FUZZ_EXPECT(post->data[i] == UNTOUCHED);
  }
}

static void test_one(struct line *line, struct post *post)
{
  int done;
  size_t size = 0;
  int error = net_test(post->request, &done, &size);
  FUZZ_EXPECT(!error || !done);
  if (error || done) {
    post->request = NULL;
  }
  if (done && post->data) {
    if (line->link->sends) {
      FUZZ_EXPECT(size == post->size);
    } else {
      check_received(line, post, size);
    }
    take_back(line, post);
  }
}

unsigned test_line(struct line *line)
{
  unsigned open = 0;
  for (int i = 0; line->link && i < LINK_REQUESTS; i++) {
    if (line->posts[i].request) {
      test_one(line, &line->posts[i]);
      open += line->posts[i].request != NULL;
    }
  }
  return open;
}

void post_one(struct line *line, bool to_send, uint32_t size, bool registered)
{
  struct post *post = &line->posts[line->posted % LINK_REQUESTS];
  uint8_t *data = line->link ? malloc(size) : NULL;
  struct net_region *region = NULL;
  struct net_request *request = NULL;
  if (!data) {
    return;
  }
  memset(data, UNTOUCHED, size);
  if (to_send) {
    memcpy(data, message_at(line->posted, 0), size);
  }
  if (registered) {
    net_register(line->link, data, size ? size : 1, NCCL_PTR_HOST, &region);
  }
  int error = (to_send
                   ? net_isend(line->link, data, size, region, &request)
                   : net_irecv(line->link, data, size, region, NET_COMPLETION_NEEDED, &request));
  FUZZ_EXPECT(!error || !request);
  if (!request) {
    if (region) {
      net_deregister(line->link, region);
    }
    free(data);
    return;
  }
  FUZZ_EXPECT(!post->request && !post->data);
  *post = (struct post){request, data, size, line->posted++, region};
  scene->posted_bytes += size;
}

void close_line(struct line *line)
{
  if (!line->link) {
    return;
  }
  net_close(line->link);
  for (int i = 0; i < LINK_REQUESTS; i++) {
    line->posts[i].region = NULL; /* the link has dropped it */
    if (line->posts[i].data) {
      take_back(line, &line->posts[i]);
    }
  }
  *line = (struct line){0};
}

static void be_linked(struct line *line, struct net_link *link)
{
  link->chunk_size = CHUNK_SIZE;
  line->link = link;
  line->connecting = false;
}

void accept_one(void)
{
  struct net_link *link = NULL;
  struct line *line = scene->lines;
  if (!scene->listener || net_accept(scene->listener, &link) != 0 || !link) {
    return;
  }
  while (line < scene->lines + LINES && (line->link || line->connecting)) {
    line++;
  }
  if (line < scene->lines + LINES) {
    be_linked(line, link);
  } else {
    net_close(link);
  }
}

void connect_line(struct line *line, unsigned instances)
{
  struct net_link *link;
  if (line->link) {
    return;
  }
  if (!line->connecting) {
    struct handle handle = {.version_min = 1,
                            .version_max = 1,
                            .address = HOST_PEER,
                            .ports = {REMOTE_PORT, REMOTE_PORT + 1},
                            .instances = (uint8_t)instances,
                            .mtu = 1500};
    handle_write(&handle, line->handle);
    line->connecting = true;
  }
  int error = net_connect(0, line->handle, &link);
  FUZZ_EXPECT(!error || !link);
  if (error) {
    *line = (struct line){0};
  } else if (link) {
    be_linked(line, link);
  }
}

void deregister(struct line *line, uint32_t which)
{
  struct post *post = &line->posts[which % LINK_REQUESTS];
  if (post->data && post->region) {
    take_back(line, post); /* the request must still end */
  }
}

void close_listener(void)
{
  if (scene->listener) {
    net_close_listener(scene->listener);
    scene->listener = NULL;
  }
}
