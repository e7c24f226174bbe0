# SPDX-License-Identifier: Apache-2.0
"""An external program that uses only harp/stack.h and libharp_stack.a."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("HARP_BUILD_DIR") or ROOT / "build")

# A handshake from both ends: two stacks joined by their callbacks' queues.
PROGRAM = r"""
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include "harp/stack.h"

struct queue { char frame[64][2048]; size_t length[64]; int count; };

static void output(void *user, const struct iovec *iov, int count) {
  struct queue *queue = user;
  size_t at = 0;
  for (int i = 0; i < count; i++) {
    memcpy(queue->frame[queue->count] + at, iov[i].iov_base, iov[i].iov_len);
    at += iov[i].iov_len;
  }
  queue->length[queue->count++] = at;
}

static void carry(struct queue *from, struct harp_stack *to) {
  for (int i = 0; i < from->count; i++)
    harp_stack_input_merged(to, from->frame[i], from->length[i], 0);
  from->count = 0;
}

static uint64_t counter(struct harp_stack *stack, const char *wanted) {
  const char *name;
  for (unsigned int i = 0; (name = harp_stack_counter_name(i)); i++)
    if (strcmp(name, wanted) == 0) return harp_stack_counter(stack, i);
  return 0;
}

static int has_counter(const char *wanted) {
  const char *name;
  for (unsigned int i = 0; (name = harp_stack_counter_name(i)); i++)
    if (strcmp(name, wanted) == 0) return 1;
  return 0;
}

int main(void) {
  static struct queue queues[2];
  struct harp_stack *stacks[2];
  for (int i = 0; i < 2; i++) {
    struct harp_stack_config config;
    struct harp_stack_callbacks callbacks = {&queues[i], output};
    harp_stack_config_default(&config);
    config.address = htonl(0x0a000001 + i);
    config.seed[0] = i + 1;
    if (harp_stack_create(&stacks[i], &config, &callbacks)) return 1;
    harp_stack_advance(stacks[i], 1000000000);
  }
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(80)};
  to.sin_addr.s_addr = htonl(0x0a000002);
  int server = harp_tcp_socket(stacks[1]), client = harp_tcp_socket(stacks[0]);
  if (harp_tcp_bind(stacks[1], server, (struct sockaddr *)&to, sizeof to)) return 2;
  if (harp_tcp_listen(stacks[1], server, 1)) return 3;
  if (harp_tcp_connect(stacks[0], client, (struct sockaddr *)&to, sizeof to) != -EINPROGRESS)
    return 4;
  int peer = -1;
  char text[16] = "";
  for (int round = 1; round < 20; round++) {
    for (int i = 0; i < 2; i++) harp_stack_advance(stacks[i], 1000000000 + round * 10000000);
    carry(&queues[0], stacks[1]);
    carry(&queues[1], stacks[0]);
    int ready[4], waits = 0;
    for (int i = harp_tcp_ready(stacks[1], ready, 4); i > 0; i--)
      if (ready[i - 1] == server && (peer = harp_tcp_accept(stacks[1], server, 0, 0)) >= 0)
        harp_tcp_send(stacks[1], peer, "hello", 5, 0);
    harp_tcp_ioctl(stacks[0], client, FIONREAD, &waits);
    if (harp_tcp_poll(stacks[0], client) & POLLIN)
      if (harp_tcp_recv(stacks[0], client, text, sizeof text - 1, 0) != waits) return 5;
  }
  struct sockaddr_in ours, theirs;
  socklen_t length = sizeof ours;
  if (harp_tcp_getsockname(stacks[0], client, (struct sockaddr *)&ours, &length)) return 6;
  if (harp_tcp_getpeername(stacks[1], peer, (struct sockaddr *)&theirs, &length)) return 7;
  if (memcmp(&ours, &theirs, sizeof ours)) return 8;
  struct harp_tcp_info info;
  length = sizeof info;
  if (harp_tcp_getsockopt(stacks[1], peer, IPPROTO_TCP, TCP_INFO, &info, &length)) return 9;
  if (length != sizeof info || info.tcpi_bytes_acked != 5 || info.tcpi_bytes_sent != 5) return 10;
  if (counter(stacks[1], "tcp_passive_opens") != 1) return 11;
  if (!has_counter("rx_software_checksums") || !has_counter("rx_summed")) return 19; /* old name */
  puts(text);
  for (int i = 0; i < 2; i++) harp_stack_destroy(stacks[i]);
  return 0;
}
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    built = BUILD / "harp/stack/libharp_stack.a"
    if not built.exists():
        pytest.skip(f"{built} is not built: meson setup build && meson compile -C build")
    assert built.read_bytes()[:8] == b"!<arch>\n", "a thin archive cannot leave the build folder"
    return Path(shutil.copy(built, tmp_path))


@pytest.mark.parametrize("standard", ["gnu99", "gnu11", "gnu17"])
def test_external_program_links_stack_library(tmp_path: Path, archive: Path, standard: str) -> None:
    if b"__asan_" in archive.read_bytes():
        pytest.skip("a build with sanitizers needs their run time")
    shutil.copytree(ROOT / "harp", tmp_path / "include/harp",
                    ignore=lambda folder, names: [n for n in names if n != "stack.h"])  # fmt: skip
    source, program = tmp_path / "outsider.c", tmp_path / "outsider"
    source.write_text(PROGRAM)
    subprocess.run(
        ["cc", f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers",
         "-Wno-sign-compare", f"-I{tmp_path}/include", "-o", program, source, archive],
        check=True,
    )  # fmt: skip
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "hello\n"


SAME = r"""
#include <linux/tcp.h>
#include "harp/stack.h"
#define SIZE(type, name) sizeof(((struct type *)0)->name)
#define SAME(name) \
  _Static_assert(offsetof(struct tcp_info, name) == offsetof(struct harp_tcp_info, name), #name); \
  _Static_assert(SIZE(tcp_info, name) == SIZE(harp_tcp_info, name), #name)
"""
LINUX_HEADER = Path("/usr/include/linux/tcp.h")


def test_tcp_info_layout_matches_linux(tmp_path: Path) -> None:
    """Field by field, as far as this machine's <linux/tcp.h> goes."""
    if not LINUX_HEADER.exists():
        pytest.skip("no <linux/tcp.h>: apt install linux-libc-dev")
    ours = re.findall(r"(tcpi_\w+)(?= *[;,:])", (ROOT / "harp/stack.h").read_text())
    body = re.sub(r"/\*.*?\*/", "", LINUX_HEADER.read_text(), flags=re.DOTALL)
    body = body.split("struct tcp_info {")[1].split("};")[0]
    theirs = re.findall(r"tcpi_\w+", body)
    common = min(len(ours), len(theirs))
    assert common > 50
    assert ours[:common] == theirs[:common]
    bits = {name for name in re.findall(r"(tcpi_\w+)\s*:", body)}
    checks = "".join(f"SAME({name});\n" for name in ours[:common] if name not in bits)
    source = tmp_path / "layout.c"
    source.write_text(SAME + checks)
    subprocess.run(["cc", "-fsyntax-only", "-Wall", "-Werror", f"-I{ROOT}", source], check=True)


def test_header_compiles_as_cxx(tmp_path: Path) -> None:
    if not shutil.which("c++"):
        pytest.skip("no C++ compiler")
    source = tmp_path / "x.cc"
    code = '#include "harp/stack.h"\nint main() { return harp_tcp_socket(nullptr) > 0; }\n'
    source.write_text(code)
    subprocess.run(["c++", "-fsyntax-only", "-Wall", "-Werror", f"-I{ROOT}", source], check=True)
