/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <ctype.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

#include "harp/engine/config_values.h"

/* Reads decimal digits only, unlike strtoul, which allows signs, blanks and hexadecimal. Moves
 * *text past the number. */
static bool read_number(const char **text, uint64_t min, uint64_t max, uint64_t *number)
{
  const char *p = *text;
  uint64_t value = 0;

  if (!isdigit((unsigned char)*p)) {
    return false;
  }
  for (; isdigit((unsigned char)*p); p++) {
    value = value * 10 + (uint64_t)(*p - '0');
    if (value > max) {
      return false;
    }
  }
  *text = p;
  *number = value;
  return value >= min;
}

static bool read_whole_number(const struct harp_config_key_info *key, const char *text,
                              uint64_t *number)
{
  return read_number(&text, key->min, key->max, number) && *text == '\0';
}

static bool read_uint32(const struct harp_config_key_info *key, const char *text, void *field)
{
  uint64_t number;

  if (!read_whole_number(key, text, &number)) {
    return false;
  }
  *(uint32_t *)field = (uint32_t)number;
  return true;
}

static bool read_uint16(const struct harp_config_key_info *key, const char *text, void *field)
{
  uint64_t number;

  if (!read_whole_number(key, text, &number)) {
    return false;
  }
  *(uint16_t *)field = (uint16_t)number;
  return true;
}

static void write_number(uint64_t number, char *out, size_t size)
{
  out[0] = '\0';
  if (number != 0) {
    snprintf(out, size, "%llu", (unsigned long long)number);
  }
}

static void write_uint32(const void *field, char *out, size_t size)
{
  write_number(*(const uint32_t *)field, out, size);
}

static void write_uint16(const void *field, char *out, size_t size)
{
  write_number(*(const uint16_t *)field, out, size);
}

/* Rejects control characters, because log lines quote the value. */
static bool copy_text(const char *text, char *out, size_t size)
{
  size_t length = strlen(text);

  if (length >= size) {
    return false;
  }
  for (size_t i = 0; i < length; i++) {
    if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) {
      return false;
    }
  }
  memcpy(out, text, length + 1);
  return true;
}

static void write_text(const void *field, char *out, size_t size)
{
  snprintf(out, size, "%s", (const char *)field);
}

static bool read_device(const struct harp_config_key_info *key, const char *text, void *field)
{
  if (harp_config_is_on_interface(text)) {
    char interface[IF_NAMESIZE];
    if (!harp_config_interface(text, interface) || strpbrk(interface, "/ \t")) {
      return false;
    }
  } else if (harp_config_has_scheme(text, "dpdk") || harp_config_has_scheme(text, "wire")) {
    if (harp_config_innermost(text)[strlen("dpdk:")] == '\0') {
      return false;
    }
  } else {
    return false;
  }
  return copy_text(text, field, HARP_CONFIG_DEVICE_SIZE);
}

/* Whether a host can own the address: it is not "this network", loopback, multicast or reserved
 * (RFC 1122, 3.2.1.3). */
static bool is_host(uint32_t address)
{
  uint8_t first = (uint8_t)(ntohl(address) >> 24);

  return first != 0 && first != 127 && first < 224;
}

static bool read_ipv4(const char *text, size_t length, uint32_t *address)
{
  char copy[INET_ADDRSTRLEN];
  struct in_addr parsed;

  if (length == 0 || length >= sizeof(copy)) {
    return false;
  }
  memcpy(copy, text, length);
  copy[length] = '\0';
  if (inet_pton(AF_INET, copy, &parsed) != 1) {
    return false;
  }
  *address = parsed.s_addr;
  return true;
}

uint32_t harp_netmask(unsigned prefix)
{
  return prefix == 0 ? 0 : htonl(0xffffffffu << (32 - prefix));
}

static bool read_address(const struct harp_config_key_info *key, const char *text, void *field)
{
  struct harp_config_address *address = field;
  const char *slash = strchr(text, '/');
  uint32_t host_bits;
  uint64_t prefix;

  memset(address, 0, sizeof(*address));
  if (strcmp(text, "kernel") == 0) {
    address->kernel = true;
    return true;
  }
  if (!slash || !read_ipv4(text, (size_t)(slash - text), &address->address)) {
    return false;
  }
  slash++;
  if (!read_number(&slash, 1, 32, &prefix) || *slash != '\0' || !is_host(address->address)) {
    return false;
  }
  address->prefix = (uint8_t)prefix;
  /* A host cannot own the network or the broadcast address. A /31 has neither (RFC 3021). */
  host_bits = address->address & ~harp_netmask(address->prefix);
  return prefix >= 31 || (host_bits != 0 && host_bits != ~harp_netmask(address->prefix));
}

static void write_address(const void *field, char *out, size_t size)
{
  const struct harp_config_address *address = field;
  char text[INET_ADDRSTRLEN];

  if (address->kernel) {
    snprintf(out, size, "kernel");
  } else {
    snprintf(out, size, "%s/%u", inet_ntop(AF_INET, &address->address, text, sizeof(text)),
             address->prefix);
  }
}

static bool read_gateway(const struct harp_config_key_info *key, const char *text, void *field)
{
  uint32_t *gateway = field;

  return read_ipv4(text, strlen(text), gateway) && is_host(*gateway);
}

static void write_gateway(const void *field, char *out, size_t size)
{
  const uint32_t *gateway = field;
  char text[INET_ADDRSTRLEN];

  snprintf(out, size, "%s", *gateway ? inet_ntop(AF_INET, gateway, text, sizeof(text)) : "");
}

static int hex_digit(char c)
{
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  c = (char)(c | 0x20);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_mac(const struct harp_config_key_info *key, const char *text, void *field)
{
  static const uint8_t zero[6];
  uint8_t *mac = field;

  for (int i = 0; i < 6; i++, text += 3) {
    int high = hex_digit(text[0]);
    int low = high < 0 ? -1 : hex_digit(text[1]);

    if (low < 0 || text[2] != (i < 5 ? ':' : '\0')) {
      return false;
    }
    mac[i] = (uint8_t)(high << 4 | low);
  }
  return !(mac[0] & 1) && memcmp(mac, zero, sizeof(zero)) != 0;
}

static void write_mac(const void *field, char *out, size_t size)
{
  static const uint8_t zero[6];
  const uint8_t *mac = field;

  out[0] = '\0';
  if (memcmp(mac, zero, sizeof(zero)) != 0) {
    snprintf(out, size, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4],
             mac[5]);
  }
}

/* Reads a hexadecimal number of at most max_digits. Moves *text past it. */
static bool read_hex(const char **text, int max_digits, unsigned *number)
{
  int digits = 0;

  for (*number = 0; hex_digit(**text) >= 0; (*text)++) {
    if (++digits > max_digits) {
      return false;
    }
    *number = *number << 4 | (unsigned)hex_digit(**text);
  }
  return digits > 0;
}

/* NVML prints the domain with eight digits, sysfs with four, and lspci omits it. */
bool harp_pci_id_parse(const char *text, char out[HARP_PCI_ID_SIZE])
{
  unsigned part[3] = {0, 0, 0}, function;
  int parts = strchr(text, ':') == strrchr(text, ':') ? 2 : 3;

  for (int i = 3 - parts; i < 3; i++) {
    if (!read_hex(&text, i == 0 ? 8 : 2, &part[i]) || *text++ != (i < 2 ? ':' : '.')) {
      return false;
    }
  }
  if (!read_hex(&text, 1, &function) || *text != '\0' || part[0] > 0xffff || part[2] > 0x1f ||
      function > 7) {
    return false;
  }
  snprintf(out, HARP_PCI_ID_SIZE, "%04x:%02x:%02x.%x", part[0] & 0xffff, part[1] & 0xff,
           part[2] & 0x1f, function & 7);
  return true;
}

static bool read_gpu(const struct harp_config_key_info *key, const char *text, void *field)
{
  char *gpu = field;

  if (strcmp(text, "any") == 0) {
    gpu[0] = '\0';
    return true;
  }
  return harp_pci_id_parse(text, gpu);
}

static void write_gpu(const void *field, char *out, size_t size)
{
  const char *gpu = field;

  snprintf(out, size, "%s", gpu[0] ? gpu : "any");
}

static bool read_path(const struct harp_config_key_info *key, const char *text, void *field)
{
  if (strcmp(text, "none") == 0) {
    *(char *)field = '\0';
    return true;
  }
  return text[0] == '/' && copy_text(text, field, HARP_CONFIG_PATH_SIZE);
}

/* Blanks around the commas of a list are allowed. */
static const char *skip_blanks(const char *text) { return text + strspn(text, " \t"); }

static bool read_cores(const struct harp_config_key_info *key, const char *text, void *field)
{
  struct harp_config_cores *cores = field;

  cores->count = 0;
  if (strcmp(text, "none") == 0) {
    return true;
  }
  for (;;) {
    uint64_t first, last;

    text = skip_blanks(text);
    if (!read_number(&text, 0, UINT16_MAX, &first)) {
      return false;
    }
    last = first;
    if (*text == '-') {
      text++;
      if (!read_number(&text, first, UINT16_MAX, &last)) {
        return false;
      }
    }
    if (last - first >= HARP_CONFIG_CORES_MAX - cores->count) {
      return false;
    }
    while (first <= last) {
      cores->cpu[cores->count++] = (uint16_t)first++;
    }
    text = skip_blanks(text);
    if (*text == '\0') {
      return true;
    }
    if (*text++ != ',') {
      return false;
    }
  }
}

/* Appends to a text that may be truncated at size already. */
#define append(out, size, used, ...)                                            \
  do {                                                                          \
    if ((used) < (size))                                                        \
      (used) += (size_t)snprintf((out) + (used), (size) - (used), __VA_ARGS__); \
  } while (0)

static void write_cores(const void *field, char *out, size_t size)
{
  const struct harp_config_cores *cores = field;
  size_t used = 0;

  out[0] = '\0';
  for (unsigned i = 0; i < cores->count; i++) {
    append(out, size, used, "%s%u", i ? "," : "", cores->cpu[i]);
  }
}

static bool read_ports(const struct harp_config_key_info *key, const char *text, void *field)
{
  struct harp_config_ports *ports = field;
  uint64_t first, last;

  if (!read_number(&text, 1, 65535, &first) || *text++ != '-' ||
      !read_number(&text, first, 65535, &last) || *text != '\0') {
    return false;
  }
  ports->first = (uint16_t)first;
  ports->last = (uint16_t)last;
  return true;
}

static void write_ports(const void *field, char *out, size_t size)
{
  const struct harp_config_ports *ports = field;

  out[0] = '\0';
  if (ports->last != 0) {
    snprintf(out, size, "%u-%u", ports->first, ports->last);
  }
}

static bool read_network(const char *text, size_t length, struct harp_config_network *network)
{
  const char *slash = memchr(text, '/', length);
  uint64_t prefix = 32;

  if (slash) {
    const char *end = text + length;
    const char *p = slash + 1;

    if (!read_number(&p, 0, 32, &prefix) || p != end) {
      return false;
    }
    length = (size_t)(slash - text);
  }
  if (!read_ipv4(text, length, &network->address)) {
    return false;
  }
  network->mask = harp_netmask((unsigned)prefix);
  network->address &= network->mask;
  return true;
}

static bool read_peers(const struct harp_config_key_info *key, const char *text, void *field)
{
  struct harp_config_peers *peers = field;

  peers->count = 0;
  if (strcmp(text, "any") == 0) {
    return true;
  }
  for (;;) {
    size_t length;

    text = skip_blanks(text);
    length = strcspn(text, ", \t");
    if (peers->count == HARP_CONFIG_PEERS_MAX ||
        !read_network(text, length, &peers->network[peers->count])) {
      return false;
    }
    peers->count++;
    text = skip_blanks(text + length);
    if (*text == '\0') {
      return true;
    }
    if (*text++ != ',') {
      return false;
    }
  }
}

static void write_peers(const void *field, char *out, size_t size)
{
  const struct harp_config_peers *peers = field;
  size_t used = 0;

  append(out, size, used, "%s", peers->count ? "" : "any");
  for (unsigned i = 0; i < peers->count; i++) {
    char text[INET_ADDRSTRLEN];

    append(out, size, used, "%s%s/%d", i ? "," : "",
           inet_ntop(AF_INET, &peers->network[i].address, text, sizeof(text)),
           __builtin_popcount(peers->network[i].mask));
  }
}

/* The key's allowed text lists the words, separated by commas. */
static bool read_choice(const struct harp_config_key_info *key, const char *text, void *field)
{
  size_t length = strlen(text);

  for (const char *word = key->allowed; *word;) {
    size_t word_length = strcspn(word, ",");

    if (word_length == length && memcmp(word, text, length) == 0) {
      return copy_text(text, field, sizeof(((struct harp_config *)NULL)->cc));
    }
    word += word_length;
    word += strspn(word, ", ");
  }
  return false;
}

#define KIND(NAME, reader, writer) \
  const struct harp_config_kind harp_config_##NAME = {.read = reader, .write = writer}

KIND(DEVICE, read_device, write_text);
KIND(ADDRESS, read_address, write_address);
KIND(GATEWAY, read_gateway, write_gateway);
KIND(UINT16, read_uint16, write_uint16);
KIND(UINT32, read_uint32, write_uint32);
KIND(MAC, read_mac, write_mac);
KIND(GPU, read_gpu, write_gpu);
KIND(PATH, read_path, write_text);
KIND(CORES, read_cores, write_cores);
KIND(PORTS, read_ports, write_ports);
KIND(PEERS, read_peers, write_peers);
KIND(CHOICE, read_choice, write_text);
